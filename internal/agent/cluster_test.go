// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

// kernelFake is a driver that keeps the states it gets, and fails at the keys that it is given.
type kernelFake struct {
	mu     sync.Mutex
	states []*nodestate.State
	fails  map[string]error // by key, while there
	lacks  error            // what Enforced says
}

func (k *kernelFake) Apply(_ context.Context, s *nodestate.State, _ nodestate.Keys) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.states = append(k.states, s)
	var errs []error
	for key, err := range k.fails {
		errs = append(errs, &dataplane.KeyError{Table: "weir_addrs", Key: key, Err: err})
	}
	return errors.Join(errs...)
}

func (k *kernelFake) Close() error                          { return nil }
func (k *kernelFake) Enforced(ep model.LocalEndpoint) error { return k.lacks }

func (k *kernelFake) last() *nodestate.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.states) == 0 {
		return nil
	}
	return k.states[len(k.states)-1]
}

// apiFake knows pods that the watch has not brought.
type apiFake map[model.Name]*model.Pod

func (a apiFake) PodForAdd(_ context.Context, name model.Name, _ string) (*watch.AddPod, error) {
	if p := a[name]; p != nil {
		return &watch.AddPod{Pod: p}, nil
	}
	return nil, errors.New("no such pod")
}

type bench struct {
	kernel  *kernelFake
	cluster *cluster
	cni     *enforcer
	api     apiFake
}

func newBench(t *testing.T) *bench { return newBenchOf(t, "n1") }

func newBenchOf(t *testing.T, node string) *bench {
	b := &bench{kernel: &kernelFake{fails: map[string]error{}}, api: apiFake{}}
	log := slog.New(slog.DiscardHandler)
	loop := dataplane.NewLoop(b.kernel, log)
	b.cluster = newCluster(node, loop, config.New(node, nil, nil), log)
	b.cni = &enforcer{cluster: b.cluster, loop: loop, driver: b.kernel, pods: b.api, standsBy: func(netip.Addr) bool { return false }, log: log}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { loop.Run(ctx) })
	wg.Go(func() { b.cluster.run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return b
}

var (
	web     = model.Name{Namespace: "shop", Name: "web"}
	webAddr = netip.MustParseAddr("10.244.1.5")
	webEP   = model.LocalEndpoint{Pod: web, ContainerID: "c1", Interface: "cali1", IfIndex: 7, Addrs: []netip.Addr{webAddr}, NetnsCookie: 9}
)

// whole is a first batch: one node, one namespace, one policy that isolates pods with app=web.
func whole() *watch.Batch {
	return &watch.Batch{
		Full: true,
		Changes: model.Changes{Namespaces: map[string]*model.Namespace{"shop": {Name: "shop"}},
			Nodes: map[string]*model.Node{"n1": {Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("172.31.1.8")}}},
			Policies: map[model.PolicyID]*model.Policy{{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: "shop", Name: "deny"}}: {
				Kind: "NetworkPolicy", Name: model.Name{Namespace: "shop", Name: "deny"}, Tier: "default", AppliesIngress: true,
				Subject: model.Selector{Namespace: "shop", Pods: &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{"web"}}}}},
			}}},
	}
}

func webPod() *model.Pod {
	return &model.Pod{Name: web, Node: "n1", Labels: map[string]string{"app": "web"}}
}

func TestNothingIsAppliedBeforeTheClusterIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.noteLocal()
		b.cluster.applyBatch(t.Context(), &watch.Batch{Changes: model.Changes{Nodes: whole().Nodes}})
		time.Sleep(10 * time.Second)
		if b.kernel.last() != nil {
			t.Fatal("a state was applied from a part of the cluster")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b.api[web] = webPod()
		if err := b.cni.Attach(ctx, webEP); err == nil {
			t.Error("an ADD succeeded before the cluster was known")
		}
		b.cluster.applyBatch(t.Context(), whole())
		synctest.Wait()
		if b.kernel.last() == nil {
			t.Error("no state after the cluster is known")
		}
	})
}

func TestRestoredEndpointsAreInTheFirstState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if err := b.cluster.do(t.Context(), func() { b.cluster.restore([]model.LocalEndpoint{webEP}) }); err != nil {
			t.Fatal(err)
		}
		b.cluster.applyBatch(t.Context(), whole())
		synctest.Wait()
		first := b.kernel.states[0]
		if a := first.Addrs[webAddr]; a.Kind != nodestate.AddrEndpoint || a.IfIndex != 7 {
			t.Errorf("first state has %+v", a)
		}
	})
}

// The watch has not seen the pod yet: it is isolated by its labels all the same when the ADD
// returns.
func TestAttachKnowsTheLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.applyBatch(t.Context(), whole())
		b.api[web] = webPod()
		if err := b.cni.Attach(t.Context(), webEP); err != nil {
			t.Fatal(err)
		}
		a := b.kernel.last().Addrs[webAddr]
		if a.Kind != nodestate.AddrEndpoint || a.Ingress.Set == 0 {
			t.Errorf("address %+v is not isolated", a)
		}
		if b.kernel.last().Clients[9].IPv4 != webAddr {
			t.Error("the pod's sockets are not known")
		}
		if err := b.cni.Detach(t.Context(), webEP); err != nil {
			t.Fatal(err)
		}
		if _, ok := b.kernel.last().Addrs[webAddr]; ok {
			t.Error("the address stays after the endpoint is gone")
		}
		if err := b.cni.Check(t.Context(), webEP); err == nil {
			t.Error("CHECK finds an endpoint that is gone")
		}
	})
}

func TestAttachFailsForItsOwnKeysOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.applyBatch(t.Context(), whole())
		b.api[web] = webPod()
		b.kernel.fails["10.9.9.9"] = errors.New("full")
		if err := b.cni.Attach(t.Context(), webEP); err != nil {
			t.Errorf("another key's failure: %v", err)
		}
		b.kernel.mu.Lock()
		b.kernel.fails[webAddr.String()] = errors.New("map is full at 5 entries")
		b.kernel.mu.Unlock()
		again := webEP
		again.IfIndex = 8
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := b.cni.Attach(ctx, again)
		if err == nil || !strings.Contains(err.Error(), "map is full at 5 entries") || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("error %v", err)
		}
	})
}

func TestAttachFailsWhenNotEnforced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.applyBatch(t.Context(), whole())
		b.api[web] = webPod()
		b.kernel.lacks = errors.New("no program is attached")
		if err := b.cni.Attach(t.Context(), webEP); err == nil {
			t.Error("an ADD succeeded without programs")
		}
	})
}

// A DEL that comes late does not take the address from the pod's newer sandbox.
func TestLateDetachLeavesTheNewerEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.applyBatch(t.Context(), whole())
		b.api[web] = webPod()
		newer := webEP
		newer.ContainerID, newer.IfIndex = "c2", 8
		for _, ep := range []model.LocalEndpoint{webEP, newer} {
			if err := b.cni.Attach(t.Context(), ep); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.cni.Detach(t.Context(), webEP); err != nil {
			t.Fatal(err)
		}
		if a := b.kernel.last().Addrs[webAddr]; a.IfIndex != 8 {
			t.Errorf("address %+v", a)
		}
	})
}

func TestAddressOwners(t *testing.T) {
	c := newCluster("n1", nil, config.New("n1", nil, nil), slog.New(slog.DiscardHandler))
	p := webPod()
	p.Addrs = []netip.Addr{webAddr}
	merge := func(pods map[model.Name]*model.Pod) {
		b := &watch.Batch{Changes: model.Changes{Pods: pods}}
		c.merge(b)
	}
	merge(map[model.Name]*model.Pod{web: p})
	if name, node, ok := c.owner(webAddr); !ok || name != web || node != "n1" {
		t.Errorf("owner %v on %s, %t", name, node, ok)
	}
	done := *p
	done.Finished = true
	merge(map[model.Name]*model.Pod{web: &done})
	if _, _, ok := c.owner(webAddr); ok {
		t.Error("a finished pod owns its address")
	}
}

func TestKubeProxyOfThisNode(t *testing.T) {
	c := &cluster{node: "n1", model: model.NewCluster(), proxies: map[string]bool{}}
	pod := func(name, node, label string, finished bool) (model.Name, *model.Pod) {
		n := model.Name{Namespace: "kube-system", Name: name}
		return n, &model.Pod{Name: n, Node: node, HostNetwork: true, Finished: finished, Labels: map[string]string{"k8s-app": label}}
	}
	for _, p := range []struct {
		name, node, label string
		finished, want    bool
	}{{"x", "n2", "kube-proxy", false, false}, {"x", "n1", "kube-proxy", true, false}, {"x", "n1", "other", false, false},
		{"x", "n1", "kube-proxy", false, true}, {"kube-proxy-n1", "n1", "", false, true}} {
		name, obj := pod(p.name, p.node, p.label, p.finished)
		c.noteProxies(map[model.Name]*model.Pod{name: obj})
		if who, _ := c.kubeProxy(); (who != "") != p.want {
			t.Errorf("%+v: %q", p, who)
		}
		c.noteProxies(map[model.Name]*model.Pod{name: nil})
		if who, _ := c.kubeProxy(); who != "" {
			t.Errorf("%+v: %q is gone", p, who)
		}
	}
	if _, known := c.kubeProxy(); known {
		t.Error("known before the cluster was read")
	}
}

// On a node of two families a pod's interface has an address of each; what the node lacks of the
// second is said, and does not hold up the first.
func TestTwoFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		eth0 := machine.Link{Name: "eth0", Index: 2, MTU: 1500, Up: true, Addrs: []netip.Prefix{netip.MustParsePrefix("172.31.1.8/24")}}
		b.cluster.machine = machine.Of(eth0)
		six := netip.MustParseAddr("fd00:10:244:1::5")
		batch := whole()
		batch.Pools = map[string]*model.Pool{"six": {Name: "six", CIDR: netip.MustParsePrefix("fd00:10:244::/56"), VXLAN: model.EncapCrossSubnet, Workload: true}}
		b.cluster.applyBatch(t.Context(), batch)
		b.api[web] = webPod()
		ep := webEP
		ep.Addrs = []netip.Addr{webAddr, six}
		if err := b.cni.Attach(t.Context(), ep); err != nil {
			t.Fatal(err)
		}
		s := b.kernel.last()
		if a, of := s.Addrs[six], s.Clients[9]; a.Kind != nodestate.AddrEndpoint || a.Ingress.Set == 0 || of != (nodestate.Client{IPv4: webAddr, IPv6: six}) {
			t.Errorf("address %+v, client %s", a, of)
		}
		if mtu := b.cluster.cniSettings().MTU; mtu != 1430 {
			t.Errorf("pods' MTU is %d, want 1430: VXLAN over IPv6", mtu)
		}
		problems := func() string {
			var out []string
			for _, p := range problems.Addresses(b.cluster.snapshot().node("n1")) {
				out = append(out, p.String())
			}
			return strings.Join(out, " ")
		}
		if p := problems(); !strings.Contains(p, "no IPv6 address") {
			t.Errorf("problems of a node without an IPv6 address: %q", p)
		}
		b.cluster.applyBatch(t.Context(), &watch.Batch{Changes: model.Changes{Nodes: map[string]*model.Node{"n1": {Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("172.31.1.8"), netip.MustParseAddr("fd00:31:1::8")}}}}})
		synctest.Wait()
		if p := problems(); !strings.Contains(p, "fd00:31:1::8") || strings.Contains(p, "172.31.1.8") {
			t.Errorf("problems of a node whose IPv6 address is on no interface: %q", p)
		}
		if err := b.cluster.do(t.Context(), func() {
			eth0.Addrs = append(eth0.Addrs, netip.MustParsePrefix("fd00:31:1::8/64"))
			b.cluster.machine = machine.Of(eth0)
			b.cluster.dirty.Add(model.KindLocal)
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p, snap := problems(), b.cluster.snapshot(); p != "" || snap.nodeAddrs[1] != netip.MustParseAddr("fd00:31:1::8") {
			t.Errorf("problems %q, known by %v", p, snap.nodeAddrs)
		}
		if a := b.kernel.last().Addrs[netip.MustParseAddr("fd00:31:1::8")]; a.Kind != nodestate.AddrHost || !a.Primary {
			t.Errorf("the node's own address is %+v", a)
		}
		if err := b.cluster.do(t.Context(), func() {
			eth0.MTU = 1320
			b.cluster.machine = machine.Of(eth0)
			b.cluster.dirty.Add(model.KindLocal)
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p := problems(); !strings.Contains(p, "1250") || !strings.Contains(p, "1280") {
			t.Errorf("problems of a link whose MTU is too small: %q", p)
		}
		// Switched off, nothing of it is left.
		b.cluster.applyBatch(t.Context(), &watch.Batch{Configs: map[string]*watch.FelixConfig{"default": {Name: "default", Spec: map[string]any{"ipv6Support": false}}}})
		synctest.Wait()
		s = b.kernel.last()
		if _, still := s.Addrs[six]; still || s.Settings.IPv6 || s.Clients[9].IPv6.IsValid() || b.cluster.snapshot().nodeAddrs[1].IsValid() {
			t.Errorf("with ipv6Support false: %s", s)
		}
	})
}

// TestHostileOwner: what a node says that its pods have hides nobody's pod, and keeps no address
// from a pod that asks for it.
func TestHostileOwner(t *testing.T) {
	hostile.Record(t, "a node writes an address into the status of its pod that somebody else's pod asks for or has", hostile.Node, hostile.ControlPlane, hostile.Both)
	for _, a := range ips("10.244.0.7", "fd00:10:244::7") {
		c := &cluster{node: "n1", model: model.NewCluster(), proxies: map[string]bool{}}
		index := func(name, node string) model.Name {
			p := &model.Pod{Name: model.Name{Namespace: "default", Name: name}, Node: node, Addrs: []netip.Addr{a}}
			c.putPod(p.Name, p)
			return p.Name
		}
		evil := index("evil", "n2")
		c.snap.refused = []calc.Refusal{{Object: "Pod " + evil.String(), Field: "status.podIPs", Value: a.String(), Node: "n2"}}
		if pod, node, ok := c.owner(a); ok {
			t.Errorf("%s is said to be of %s on %s", a, pod, node)
		}
		victim := index("victim", "n3")
		index("evil", "n2")
		if pod, _, ok := c.owner(a); !ok || pod != victim {
			t.Errorf("%s is said to be of %s", a, pod)
		}
		c.putPod(victim, nil)
		if _, _, ok := c.owner(a); ok {
			t.Errorf("%s is said to be of a pod that is gone", a)
		}
	}
}

// Who reports a change when the agent is ending waits for nobody.
func TestChangesAfterTheEndOfTheCluster(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	c := newCluster("n1", dataplane.NewLoop(&kernelFake{}, log), config.New("n1", nil, nil), log)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.run(ctx); err != nil {
		t.Fatal(err)
	}
	for range 2 * cap(c.queue) {
		c.noteLocal()
	}
}

// What is configured is remembered for the next start, also where no state of the node has it: a
// change of the data plane ends with a start, which would otherwise take the one before for the one
// that is asked for.
func TestConfigurationWithoutAStateIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var noted []map[string]string
		note := func(values map[string]string) { noted = append(noted, values) }
		if err := b.cluster.do(t.Context(), func() { b.cluster.noteConfig = note }); err != nil {
			t.Fatal(err)
		}
		asked := &watch.Batch{Configs: map[string]*watch.FelixConfig{"default": {Spec: map[string]any{"bpfEnabled": true}}}}
		b.cluster.applyBatch(t.Context(), asked)
		synctest.Wait()
		if len(noted) > 0 {
			t.Errorf("remembered before the cluster was read: %v", noted)
		}
		first := whole()
		first.Configs = asked.Configs
		b.cluster.applyBatch(t.Context(), first)
		synctest.Wait()
		states := len(b.kernel.states)
		b.cluster.applyBatch(t.Context(), &watch.Batch{Configs: map[string]*watch.FelixConfig{"default": {Spec: map[string]any{"bpfEnabled": false}}}})
		synctest.Wait()
		if n := len(b.kernel.states); n != states {
			t.Fatalf("%d states, %d before: the test needs a change that makes none", n, states)
		}
		if len(noted) == 0 || !config.New("n1", nil, noted[len(noted)-1]).AtStart().NFTables {
			t.Errorf("after nftables was asked for, a start by what is remembered has eBPF: %v", noted)
		}
	})
}

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// TestChangesOfEndpointsAreTimed: a change of a slice counts once, with the state that has it; what
// was there when the cluster was read does not, nor do slices that no Service is carried by.
func TestChangesOfEndpointsAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		type noted struct {
			gen   uint64
			times []time.Time
		}
		var got []noted
		b.cluster.programmed = func(gen uint64, times []time.Time) { got = append(got, noted{gen, times}) }
		at := func(s int64) time.Time { return time.Unix(s, 5) }
		slice := func(name string, s int64, notCarried bool) map[model.Name]*model.EndpointSlice {
			n := model.Name{Namespace: "shop", Name: name}
			return map[model.Name]*model.EndpointSlice{n: {Name: n, Service: web, ChangedAt: at(s).UnixNano(), NotCarried: notCarried}}
		}
		full := whole()
		full.Slices = slice("a", 100, false)
		for _, batch := range []*watch.Batch{
			full,
			{Changes: model.Changes{Slices: slice("a", 101, false)}},
			{Changes: model.Changes{Slices: slice("a", 101, false)}}, // something else of it changed
			{Changes: model.Changes{Slices: slice("headless", 102, true)}},
			{Changes: model.Changes{Slices: slice("b", 103, false)}},
			{Changes: model.Changes{Slices: map[model.Name]*model.EndpointSlice{{Namespace: "shop", Name: "b"}: nil}}},
		} {
			b.cluster.applyBatch(t.Context(), batch)
			synctest.Wait()
		}
		if len(got) != 2 || !slices.Equal(got[0].times, []time.Time{at(101)}) || !slices.Equal(got[1].times, []time.Time{at(103)}) {
			t.Errorf("noted %v", got)
		}
		for _, n := range got {
			if n.gen == 0 || n.gen > b.cluster.gen {
				t.Errorf("noted with state %d, of %d", n.gen, b.cluster.gen)
			}
		}
	})
}
