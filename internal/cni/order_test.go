// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/model"
)

// call is one CNI call of an order test.
type call struct{ command, container string }

// permutations returns all orders of the calls.
func permutations(calls []call) [][]call {
	if len(calls) < 2 {
		return [][]call{calls}
	}
	var out [][]call
	for i := range calls {
		rest := append(append([]call{}, calls[:i]...), calls[i+1:]...)
		for _, p := range permutations(rest) {
			out = append(out, append([]call{calls[i]}, p...))
		}
	}
	return out
}

// consistent checks that the machine, the allocations and the data plane agree: at most one
// sandbox of the pod, complete in all three.
func (w *world) consistent(pod string) (container string) {
	w.t.Helper()
	records := w.s.IPAM.ByPod(model.Name{Namespace: "ns", Name: pod})
	families := 0
	for _, wanted := range []bool{w.v4, w.v6} {
		if wanted {
			families++
		}
	}
	if len(records) != 0 && len(records) != families {
		w.t.Fatalf("%d allocations of one pod: %v", len(records), records)
	}
	host := hostName("cali", model.Name{Namespace: "ns", Name: pod}, "eth0")
	text, ok := w.links()[host]
	if len(records) == 0 {
		if ok {
			w.t.Errorf("interface %s without an allocation", host)
		}
		for a, ep := range w.enforcer.attached {
			if ep.Pod.Name == pod {
				w.t.Errorf("endpoint %s without an allocation", a)
			}
		}
		return ""
	}
	l, err := w.link.LinkByName(host)
	for _, r := range records {
		if text != alias(r.PodName(), r.ContainerID, "eth0") {
			w.t.Errorf("allocation of %s, interface of %q", r.ContainerID, text)
		}
		ep := w.enforcer.attached[r.Address]
		if err != nil || ep.ContainerID != r.ContainerID || ep.IfIndex != l.Attrs().Index {
			w.t.Errorf("allocation of %s, endpoint %+v, link error %v", r.ContainerID, ep, err)
		}
	}
	return records[0].ContainerID
}

// TestOrders runs two ADDs and a DEL (and the DEL of both) for one pod in every order, one after
// the other and at the same time.
func TestOrders(t *testing.T) {
	w := newWorld(t)
	w.v6 = true
	ns := map[string]*os.File{"old": newNetns(t), "new": newNetns(t)}
	sets := [][]call{
		{{"ADD", "old"}, {"ADD", "new"}, {"DEL", "old"}},
		{{"ADD", "old"}, {"ADD", "old"}, {"DEL", "old"}},
		{{"ADD", "old"}, {"DEL", "old"}, {"ADD", "new"}, {"DEL", "new"}},
	}
	for _, set := range sets {
		for _, order := range permutations(set) {
			want := ""
			for _, c := range order {
				if err := w.do(c.command, "p", c.container, ns[c.container]); err != nil {
					t.Fatalf("%v: %v: %v", order, c, err)
				}
				if c.command == "ADD" {
					want = c.container
				} else if want == c.container {
					want = ""
				}
				if got := w.consistent("p"); got != want {
					t.Errorf("%v: after %v the pod's sandbox is %q, want %q", order, c, got, want)
				}
				if want != "" {
					if err := w.do("CHECK", "p", want, ns[want]); err != nil {
						t.Errorf("%v: CHECK after %v: %v", order, c, err)
					}
				}
			}
			w.do("DEL", "p", "old", nil)
			w.do("DEL", "p", "new", nil)
			w.empty()
		}
		for range 8 {
			var wg sync.WaitGroup
			for _, c := range set {
				wg.Go(func() {
					if err := w.do(c.command, "p", c.container, ns[c.container]); err != nil {
						t.Errorf("%v: %v", c, err)
					}
				})
			}
			wg.Wait()
			w.consistent("p")
			w.do("DEL", "p", "old", nil)
			w.do("DEL", "p", "new", nil)
			w.empty()
		}
	}
	if n := len(w.s.locks.m); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

func TestConcurrentPods(t *testing.T) {
	w := newWorld(t)
	w.v6 = true
	const pods = 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]string{}
	slots := make(chan bool, 8)
	ns := make([]*os.File, pods)
	for i := range pods {
		ns[i] = newNetns(t)
	}
	for i := range pods {
		wg.Go(func() {
			slots <- true
			defer func() { <-slots }()
			pod, c := fmt.Sprint("p", i), fmt.Sprint("c", i)
			res, _, err := w.s.Handle(ctx10(t), w.request("ADD", pod, c), ns[i])
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			for _, a := range res.Addrs {
				if who, ok := seen[a.Addr]; ok {
					t.Errorf("%s given to %s and %s", a.Addr, who, pod)
				}
				seen[a.Addr] = pod
			}
			mu.Unlock()
			if err := w.do("CHECK", pod, c, ns[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range pods {
		wg.Go(func() {
			slots <- true
			defer func() { <-slots }()
			if err := w.do("DEL", fmt.Sprint("p", i), fmt.Sprint("c", i), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.empty()
}

// held counts the containers that have addresses.
func (w *world) held() int { return len(group(w.s.IPAM.Records())) }

func TestGC(t *testing.T) {
	w := newWorld(t)
	w.v6 = true
	for _, c := range []string{"1", "2", "3"} {
		w.add("p"+c, "c"+c, newNetns(t))
	}
	req := request("GC", "", "")
	req.Network = "another"
	if _, _, err := w.s.Handle(ctx10(t), req, nil); err != nil || w.held() != 3 {
		t.Error("GC of another network removed something:", err)
	}
	req.Network, req.Valid = "weir", []wire.Attachment{{ContainerID: "c2", IfName: "eth0"}, {ContainerID: "gone", IfName: "eth0"}}
	if _, _, err := w.s.Handle(ctx10(t), req, nil); err != nil {
		t.Error(err)
	}
	if got := w.consistent("p2"); got != "c2" || w.held() != 1 || len(w.links()) != 1 {
		t.Error(got, w.s.IPAM.Records(), w.links())
	}
	req.Valid = []wire.Attachment{{}}
	if _, _, err := w.s.Handle(ctx10(t), req, nil); err == nil || w.held() != 1 {
		t.Error("GC with a damaged list:", err)
	}
}

// TestRestart: endpoints are found again, also when records are damaged or lost.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	var eps []model.LocalEndpoint
	for _, c := range []string{"1", "2", "3"} {
		res := w.add("p"+c, "c"+c, newNetns(t))
		eps = append(eps, w.enforcer.attached[netip.MustParsePrefix(res.Addrs[0].Addr).Addr()])
	}
	os.WriteFile(w.dir+"/"+eps[1].Addrs[0].String(), []byte("damaged"), 0o600)
	os.Remove(w.dir + "/" + eps[2].Addrs[0].String())
	w.start()
	got, err := w.s.Restore(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || len(w.s.IPAM.Problems()) != 0 {
		t.Fatal(got, w.s.IPAM.Problems())
	}
	for i, ep := range got {
		want := eps[i]
		if i > 0 {
			want.NetnsCookie = 0 // only the record knows it
		}
		if fmt.Sprint(ep) != fmt.Sprint(want) {
			t.Errorf("restored %+v, want %+v", ep, want)
		}
	}
	for _, c := range []string{"1", "2", "3"} {
		if err := w.do("DEL", "p"+c, "c"+c, nil); err != nil {
			t.Error(err)
		}
	}
	w.empty()
}

func TestReconcile(t *testing.T) {
	w := newWorld(t)
	w.v6 = true
	now := time.Now()
	name := model.Name{Namespace: "ns", Name: "p"}
	res := w.add("p", "c1", newNetns(t))
	reconcile := func(d time.Duration) {
		if err := w.s.Reconcile(context.Background(), now.Add(d)); err != nil {
			t.Fatal(err)
		}
	}
	left := w.held
	w.pods.gone[name] = true
	reconcile(0)
	reconcile(time.Hour)
	if left() != 1 {
		t.Fatal("an address was released while its interface exists")
	}
	l, _ := w.link.LinkByName(res.Host.Name)
	w.link.LinkDel(l)
	delete(w.pods.gone, name)
	reconcile(2 * time.Hour)
	reconcile(3 * time.Hour)
	if left() != 1 {
		t.Fatal("an address was released while its pod exists")
	}
	w.pods.gone[name] = true
	reconcile(4 * time.Hour)
	if left() != 1 {
		t.Fatal("an address was released without grace")
	}
	reconcile(5 * time.Hour)
	w.empty()
}

// TestUndelivered: an ADD whose caller is gone is taken back, unless another call took its place.
func TestUndelivered(t *testing.T) {
	w := newWorld(t)
	w.v6 = true
	ns := newNetns(t)
	_, undo, failure := w.s.Handle(ctx10(t), w.request("ADD", "p", "c1"), ns)
	if failure != nil {
		t.Fatal(failure)
	}
	undo()
	w.empty()
	_, undo, _ = w.s.Handle(ctx10(t), w.request("ADD", "p", "c1"), ns)
	w.add("p", "c2", newNetns(t))
	undo()
	if got := w.consistent("p"); got != "c2" {
		t.Error("the undo of an old ADD removed the new one:", got)
	}
	w.do("DEL", "p", "c2", nil)

	ctx, cancel := context.WithCancel(context.Background())
	w.enforcer.attach = cancel
	if _, _, err := w.s.Handle(ctx, w.request("ADD", "p", "c3"), ns); err == nil {
		t.Error("an ADD whose caller went away succeeded")
	}
	w.empty()
}

// TestFailedUndo: what cannot be undone keeps its address.
func TestFailedUndo(t *testing.T) {
	w := newWorld(t)
	w.v6 = true
	w.s.Enforcer = stuck{}
	ns := newNetns(t)
	if err := w.do("ADD", "p", "c1", ns); err == nil || err.Code != wire.CodeEnforce {
		t.Error(err)
	}
	if len(w.s.IPAM.Records()) != 2 {
		t.Error("an address of an endpoint that is still in the data plane was released")
	}
	if err := w.do("DEL", "p", "c1", nil); err == nil {
		t.Error("DEL says that all is gone")
	}
	w.s.Enforcer = w.enforcer
	if err := w.do("DEL", "p", "c1", nil); err != nil {
		t.Error(err)
	}
	w.empty()
}

type stuck struct{}

func (stuck) Attach(context.Context, model.LocalEndpoint) error { return errors.New("stuck") }
func (stuck) Detach(context.Context, model.LocalEndpoint) error { return errors.New("stuck") }
func (stuck) Check(context.Context, model.LocalEndpoint) error  { return errors.New("stuck") }

func TestNames(t *testing.T) {
	long := strings.Repeat("x", 250)
	for _, c := range []struct {
		pod               model.Name
		container, ifname string
	}{{model.Name{Namespace: "ns", Name: "p"}, "c", "eth0"}, {model.Name{Namespace: "ns", Name: "p"}, "c", "net1"}} {
		pod, container, ifname, ok := parseAlias(alias(c.pod, c.container, c.ifname))
		if !ok || pod != c.pod || container != c.container || ifname != c.ifname {
			t.Errorf("%+v: %v %v %v %v", c, pod, container, ifname, ok)
		}
	}
	hashed := alias(model.Name{Namespace: "ns", Name: long}, strings.Repeat("c", 64), "eth0")
	if _, _, _, ok := parseAlias(hashed); ok || len(hashed) > maxAlias {
		t.Error(hashed)
	}
	for _, text := range []string{"", "weir:", "weir:a/b", "cali", "weir:a/b/c/d/e"} {
		if _, _, _, ok := parseAlias(text); ok {
			t.Error(text)
		}
	}
	pod := model.Name{Namespace: "default", Name: "web-0"}
	if got := hostName("cali", pod, "eth0"); got != "cali0d7763386da" { // printf default.web-0 | sha1sum
		t.Error(got)
	}
	if got := hostName("cali", pod, "net1"); got == hostName("cali", pod, "eth0") || len(got) > 15 {
		t.Error(got)
	}
}
