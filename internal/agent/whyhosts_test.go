package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/internal/why"
)

// What host endpoints say is explained where the packet comes in, before Services, and where it leaves, for the node's own processes and
// for what the node hands on; the tables say the same.
func TestWhyExplainsHostEndpoints(t *testing.T) {
	const uplink, weir0 = 999_001, 999_002 // no interfaces of this machine
	b := newBench(t)
	batch := whole()
	batch.HostEndpoints = map[string]*model.HostEndpoint{"n1-all": {Name: "n1-all", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"host": "yes"}}}
	port := func(n uint16) []model.PortRange {
		return []model.PortRange{{Protocol: model.ProtocolTCP, First: n, Last: n}}
	}
	for _, p := range []*model.Policy{
		{Name: model.Name{Name: "gate"}, Order: 2, AppliesIngress: true, AppliesEgress: true, Ingress: []model.Rule{{Action: model.Allow, Ports: port(9100)}}, Egress: []model.Rule{{Action: model.Allow, Ports: port(443)}}},
		{Name: model.Name{Name: "forward"}, Order: 1, ApplyOnForward: true, AppliesEgress: true, Egress: []model.Rule{{Action: model.Deny, Ports: port(25)}, {Action: model.Allow}}},
		{Name: model.Name{Name: "first"}, ApplyOnForward: true, PreDNAT: true, AppliesIngress: true, Ingress: []model.Rule{{Action: model.Deny, Ports: port(30001)}}},
	} {
		p.Kind, p.Tier, p.Subject = model.KindGlobalNetworkPolicy, model.TierDefault, model.Selector{Expression: "host == 'yes'"}
		batch.Policies[p.ID()] = p
	}
	b.cluster.noteLocal()
	b.cluster.take(t.Context(), batch)
	if err := b.cluster.do(t.Context(), func() {
		b.cluster.model.Local.HostAddrs = []netip.Addr{netip.MustParseAddr("172.31.1.8")}
		b.cluster.dirty.Add(model.KindLocal)
		b.cluster.compute()
	}); err != nil {
		t.Fatal(err)
	}
	state := b.cluster.snapshot().state
	if state == nil || len(state.HostEndpoints) == 0 {
		t.Fatalf("no host endpoint in\n%s", state)
	}
	for _, c := range []struct {
		hook    sim.Hook
		ifindex int
		packet  string
		result  sim.Result
		want    string
	}{
		{sim.FromUplink, uplink, "tcp 172.31.1.55:50000 > 172.31.1.8:9100 S", sim.Result{Action: sim.Pass},
			"preDNAT ingress allowed by default-allow preDNAT ingress of host endpoint n1-all; host ingress allowed by GlobalNetworkPolicy gate ingress[0]"},
		{sim.FromUplink, uplink, "tcp 172.31.1.55:50000 > 172.31.1.8:22 S", sim.Result{Action: sim.Pass},
			"preDNAT ingress allowed by failsafe failsafeInboundHostPorts 22/tcp; host ingress allowed by failsafe failsafeInboundHostPorts 22/tcp"},
		{sim.FromUplink, uplink, "tcp 172.31.1.55:50000 > 172.31.1.8:9101 S", sim.Result{Action: sim.Drop, Reason: reason.HostIngress},
			"preDNAT ingress allowed by default-allow preDNAT ingress of host endpoint n1-all; host ingress denied by default-deny gate ingress"},
		{sim.FromUplink, uplink, "tcp 172.31.1.55:50000 > 172.31.1.8:30001 S", sim.Result{Action: sim.Drop, Reason: reason.HostPreDNAT},
			"preDNAT ingress denied by GlobalNetworkPolicy first ingress[0]"},
		{sim.ToUplink, uplink, "tcp 172.31.1.8:50000 > 8.8.8.8:443 S", sim.Result{Action: sim.Pass},
			"host egress allowed by GlobalNetworkPolicy forward egress[1]"},
		{sim.ToUplink, uplink, "tcp 172.31.1.8:50000 > 8.8.8.8:25 S", sim.Result{Action: sim.Drop, Reason: reason.HostEgress}, // asked without host endpoints: it passes
			"host egress denied by GlobalNetworkPolicy forward egress[0]"},
		{sim.FromWorkload, 7, "tcp 10.244.1.5:50000 > 8.8.8.8:443 S", sim.Result{Action: sim.Neigh, IfIndex: uplink},
			"forward egress allowed by GlobalNetworkPolicy forward egress[1]"},
		{sim.FromWorkload, 7, "tcp 10.244.1.5:50000 > 172.31.1.8:443 S", sim.Result{Action: sim.Pass}, ""},
	} {
		p, err := packet.Parse(c.packet)
		if err != nil {
			t.Fatal(err)
		}
		i := &inquiry{agent: &Agent{cluster: b.cluster}, ask: why.Request{Protocol: model.ProtocolTCP}, state: state, answer: &why.Answer{}, result: c.result,
			places: ebpf.Places{Uplinks: map[int][6]byte{uplink: {2}}, Host: weir0}, in: sim.In{Hook: c.hook, IfIndex: c.ifindex, Packet: p}}
		i.result.Packet = p
		ends, err := i.arrivalEnds(t.Context())
		if _, _, denied := denial(ends); err == nil && !denied {
			var more []why.End
			more, err = i.hostEnds(t.Context())
			ends = append(ends, more...)
		}
		if err != nil {
			t.Errorf("%s: %v", c.packet, err)
			continue
		}
		got := ""
		for n, e := range ends {
			if n > 0 {
				got += "; "
			}
			got += fmt.Sprintf("%s %s %s by %s", e.Host, e.Direction, verdictWord(e.Explanation.Allow), e.Explanation.Rule)
			if !e.Agrees || e.Explanation.HostEndpoint != "n1-all" || e.Interface != fmt.Sprint("interface ", uplink) {
				t.Errorf("%s: %+v", c.packet, e)
			}
		}
		if got != c.want {
			t.Errorf("%s at %s:\n%s, want\n%s", c.packet, c.hook, got, c.want)
		}
	}
}
