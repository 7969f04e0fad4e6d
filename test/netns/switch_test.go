package netns

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// switchTo gives the node another data plane, as an agent does it that is asked for it: it starts again with that, and takes away what the
// one before left once its own is in place.
func (n *node) switchTo(plane string) {
	n.lan.t.Helper()
	n.driver.kill()
	n.driver.plane = plane
	n.driver.start()
	n.apply()
}

// TestSwitch: open connections of all kinds go on while nodes change their data planes, in both directions.
func TestSwitch(t *testing.T) {
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		for kind, isolated := range map[string]bool{"open": false, "isolated": true} {
			t.Run(name+"/"+kind, func(t *testing.T) { testSwitch(t, fam, isolated) })
		}
	}
}

func testSwitch(t *testing.T, fam family, isolated bool) {
	f := newFixture(t, fam)
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.cluster.Settings.HostNAT = true
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.service("own", "10.96.0.4", 30004)
	f.slices("own", 8081, []model.ServiceEndpoint{{Addrs: f.lan.pairOf(f.n1.addr)[:1], Node: "n1", Ready: true, Serving: true}})
	for _, s := range []string{"near", "far"} {
		f.linesAt(s)
	}
	for _, w := range []*worker{f.a.worker, f.b.worker, f.c.worker, f.n1.worker, f.client.worker} {
		w.lines(":8081")
	}
	if isolated {
		f.isolate()
	}
	f.apply()
	all := f.streams(t, 3)
	for _, s := range all {
		s.goesOn(t, "before")
	}
	for _, step := range []struct {
		n     *node
		plane string
	}{{f.n1, "nft"}, {f.n2, "nft"}, {f.n1, "ebpf"}, {f.n2, "ebpf"}, {f.n1, "nft"}, {f.n1, "ebpf"}} {
		step.n.switchTo(step.plane)
		when := fmt.Sprintf("%s has gone over to %s", step.n.name, step.plane)
		for _, s := range all {
			s.goesOn(t, when)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	longest, lost := time.Duration(0), 0
	for _, s := range all {
		r := s.goesOn(t, "in the end")
		t.Logf("%s: %d exchanges, longest %v, %d datagrams sent again", s.what, r.Exchanges, r.Longest.Round(time.Millisecond), r.Lost)
		longest, lost = max(longest, r.Longest), lost+r.Lost
		s.end(t)
	}
	t.Logf("longest %v, %d datagrams sent again", longest.Round(time.Millisecond), lost)
}

// linesAt makes a Service's backends those ports that serve lines.
func (f *fixture) linesAt(service string) {
	name := model.Name{Namespace: "default", Name: service}
	f.slices(service, 8081, f.cluster.Slices[name].Endpoints)
}

// isolate lets pods a, b and c get only what the streams of testSwitch are, and begin nothing but a.
func (f *fixture) isolate() {
	anybody := []model.Peer{{CIDR: f.family.prefix("172.30.0.0/24")}, {Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}}}
	for _, app := range []string{"b", "c"} {
		p := allow(app, anybody...)
		p.AppliesEgress = true
		f.cluster.Policies[p.ID()] = p
	}
	p := allow("a")
	p.Ingress, p.AppliesEgress = nil, true
	p.Egress = []model.Rule{{Action: model.Allow, Peers: append(anybody, model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("b")}},
		model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("c")}})}}
	f.cluster.Policies[p.ID()] = p
}

// streams begins connections of every kind that a node carries alone, a few of each.
func (f *fixture) streams(t *testing.T, conns int) []*running {
	t.Helper()
	var out []*running
	begin := func(w *worker, addr string, nets ...string) {
		t.Helper()
		for _, nw := range nets {
			out = append(out, w.stream(t, len(out)+1, conns, nw, addr))
		}
	}
	begin(f.a.worker, f.b.at("8081"), networks...)
	begin(f.a.worker, f.c.at("8081"), networks...)
	begin(f.a.worker, "10.96.0.1:80", networks...)
	begin(f.a.worker, "10.96.0.2:80", networks...)
	begin(f.client.worker, "172.30.0.8:30001", networks...)
	begin(f.client.worker, "172.30.0.9:30002", networks...)
	begin(f.a.worker, "172.30.0.55:8081", networks...) // masqueraded
	begin(f.a.worker, "172.30.0.8:8081", networks...)  // the pod's own node
	begin(f.n1.worker, f.b.at("8081"), networks...)
	begin(f.a.worker, "10.96.0.4:80", networks...)          // a Service of the node
	begin(f.client.worker, "172.30.0.8:30004", networks...) // the same, from outside
	return out
}
