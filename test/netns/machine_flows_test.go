// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/controller/kubevirt"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// movedMachines are virtual machines to a driver's process: an address that the state does not have
// here is that of the pod whose interface is held.
type movedMachines struct{ *whyAgent }

func (m movedMachines) state() *nodestate.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.whyAgent.state
}

func (m movedMachines) Kept(a netip.Addr) string { return a.String() }

func (m movedMachines) EndpointOf(a netip.Addr) *model.LocalEndpoint {
	s := m.state()
	name := s.Addrs[a].Interface
	for _, held := range s.Held {
		name = held
	}
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	return &model.LocalEndpoint{IfIndex: i.Index}
}

// Ask implements kubevirt.Agents by the drivers of nodes.
func (f *fixture) Ask(ctx context.Context, name, method, path string, body io.Reader) (*http.Response, error) {
	n := map[string]*node{"n1": f.n1, "n2": f.n2}[name]
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, body)
	if err != nil {
		return nil, err
	}
	return n.driverClient().Do(req)
}

// migrates moves a machine to another node with its flows, as its controller and agents do.
func (m *machine) migrates(t *testing.T, to string) {
	t.Helper()
	from := m.at
	pods := map[string]*pod{"n1": m.home, "n2": m.target}
	m.moves(t, pods[from], pods[to])
	for _, a := range m.addrs {
		n, err := kubevirt.MoveFlows(t.Context(), m.f, a, from, to)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d flows go from %s to %s", a, n, from, to)
	}
	m.goes(t, to, true)
}

// TestMachineFlows: open connections of a virtual machine that policy isolates, of both directions,
// to pods of both nodes, to Services and from outside, go on while it is moved to another node and
// back; one that policy denies from then on does not.
func TestMachineFlows(t *testing.T) { inBoth(t, testMachineFlows) }

func testMachineFlows(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 0, f.b)
	f.service("far", "10.96.0.2", 0, f.c)
	for _, service := range []string{"near", "far"} {
		f.linesAt(service)
	}
	m := f.newMachine(t)
	own := m.addrs[0].String()
	f.service("vm", "10.96.0.3", 0, m.home)
	f.linesAt("vm")
	for _, h := range []*host{f.client, f.client2} {
		h.reachesBy(t, own, f.n1)
	}
	pods := func(app string) model.Peer {
		return model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp(app)}}
	}
	p := allow("vm", pods("a"), pods("c"), model.Peer{CIDR: fam.prefix("172.30.0.0/24")})
	p.AppliesEgress, p.Egress = true, []model.Rule{{Action: model.Allow, Peers: []model.Peer{pods("b"), pods("c")}}}
	f.put(p)
	for _, app := range []string{"b", "c"} { // and its peers
		f.put(allow(app, pods("vm")))
	}
	f.n1.explains()
	f.n2.explains()
	for _, p := range []*pod{f.b, f.c} {
		p.lines(":8081")
	}
	m.goes(t, "n1", true)
	var all []*running
	begin := func(from *worker, to string, nets ...string) {
		t.Helper()
		for _, nw := range nets {
			all = append(all, from.stream(t, len(all)+1, 1, 20*time.Millisecond, nw, to))
		}
	}
	for _, from := range []*worker{f.a.worker, f.c.worker, f.client.worker} {
		begin(from, own+":8081", networks...)
	}
	for _, from := range []*worker{f.a.worker, f.c.worker} {
		begin(from, "10.96.0.3:80", networks...)
	}
	for _, to := range []string{f.b.at("8081"), f.c.at("8081"), "10.96.0.1:80", "10.96.0.2:80"} {
		begin(m.worker, to, networks...)
	}
	if a := f.client2.call(request{Op: "open", Net: "tcp", Addr: own + ":8080", ID: 1}); a.Err != "" {
		t.Fatal(a.Err)
	}
	none := 0
	all = allGoOn(t, all, "before", &none)
	p.Ingress[0].Peers[2].CIDR = fam.prefix("172.30.0.55/32") // not client2; the move puts it in force
	m.migrates(t, "n2")
	all = allGoOn(t, all, "moved", &none)
	if a := f.client2.call(request{Op: "talk", ID: 1, Timeout: 1000}); a.Err == "" {
		t.Error("a connection that policy denies goes on")
	}
	f.client.reachesBy(t, own, f.n2)
	for _, nw := range networks {
		want(t, nw+" begun there", f.a.reaches("vm", nw, own+":8080"), "10.244.1.2")
		f.d.refused(nw, own+":8080")
		want(t, nw+" to n1", m.reaches("b", nw, f.b.at("8080")), own)
	}
	m.migrates(t, "n1")
	f.client.reachesBy(t, own, f.n1)
	all = allGoOn(t, all, "back", &none)
	for _, s := range all {
		s.end(t)
	}
}
