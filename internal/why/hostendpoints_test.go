// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/internal/why/wire"
)

// What host endpoints say is explained where the packet comes in, before Services, and where it
// leaves, for the node's own processes and for what the node hands on; the tables say the same.
func TestWhyExplainsHostEndpoints(t *testing.T) {
	i := hostInquiry(t, []*model.Policy{
		{Name: model.Name{Name: "gate"}, Order: 2, AppliesIngress: true, AppliesEgress: true, Ingress: []model.Rule{{Action: model.Allow, Ports: tcpPort(9100)}}, Egress: []model.Rule{{Action: model.Allow, Ports: tcpPort(443)}}},
		{Name: model.Name{Name: "forward"}, Order: 1, ApplyOnForward: true, AppliesEgress: true, Egress: []model.Rule{{Action: model.Deny, Ports: tcpPort(25)}, {Action: model.Allow}}},
		{Name: model.Name{Name: "first"}, ApplyOnForward: true, PreDNAT: true, AppliesIngress: true, Ingress: []model.Rule{{Action: model.Deny, Ports: tcpPort(30001)}}},
	})
	for _, c := range []struct {
		hook    sim.Hook
		ifindex int
		packet  string
		result  sim.Result
		want    string
	}{
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:9100 S", sim.Result{Action: sim.Pass},
			"preDNAT ingress allowed by default-allow preDNAT ingress of host endpoint n1-all; host ingress allowed by GlobalNetworkPolicy gate ingress[0]"},
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:22 S", sim.Result{Action: sim.Pass},
			"preDNAT ingress allowed by failsafe failsafeInboundHostPorts 22/tcp; host ingress allowed by failsafe failsafeInboundHostPorts 22/tcp"},
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:9101 S", sim.Result{Action: sim.Drop, Reason: reason.HostIngress},
			"preDNAT ingress allowed by default-allow preDNAT ingress of host endpoint n1-all; host ingress denied by default-deny gate ingress"},
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:30001 S", sim.Result{Action: sim.Drop, Reason: reason.HostPreDNAT},
			"preDNAT ingress denied by GlobalNetworkPolicy first ingress[0]"},
		{sim.ToUplink, testUplink, "tcp 172.31.1.8:50000 > 8.8.8.8:443 S", sim.Result{Action: sim.Pass},
			"host egress allowed by GlobalNetworkPolicy forward egress[1]"},
		{sim.ToUplink, testUplink, "tcp 172.31.1.8:50000 > 8.8.8.8:25 S", sim.Result{Action: sim.Drop, Reason: reason.HostEgress}, // asked without host endpoints: it passes
			"host egress denied by GlobalNetworkPolicy forward egress[0]"},
		{sim.FromWorkload, 7, "tcp 10.244.1.5:50000 > 8.8.8.8:443 S", sim.Result{Action: sim.Neigh, IfIndex: testUplink},
			"forward egress allowed by GlobalNetworkPolicy forward egress[1]"},
		{sim.FromWorkload, 7, "tcp 10.244.1.5:50000 > 172.31.1.8:443 S", sim.Result{Action: sim.Pass}, ""},
	} {
		if got := i.hostsSay(t, c.hook, c.ifindex, c.packet, c.result); got != c.want {
			t.Errorf("%s at %s:\n%s, want\n%s", c.packet, c.hook, got, c.want)
		}
	}
}

// What host endpoints say of a packet by itself comes first; what they allow so of the node's own
// is asked nothing else, what no rule is about all else.
func TestWhyExplainsUntracked(t *testing.T) {
	i := hostInquiry(t, []*model.Policy{
		{Name: model.Name{Name: "gate"}, Order: 2, AppliesIngress: true, AppliesEgress: true, Ingress: []model.Rule{{Action: model.Allow, Ports: tcpPort(9100)}}, Egress: []model.Rule{{Action: model.Allow, Ports: tcpPort(443)}}},
		{Name: model.Name{Name: "first"}, ApplyOnForward: true, PreDNAT: true, AppliesIngress: true, Ingress: []model.Rule{{Action: model.Deny, Ports: tcpPort(5353)}}},
		{Name: model.Name{Name: "fast"}, Order: 1, ApplyOnForward: true, DoNotTrack: true, AppliesIngress: true, AppliesEgress: true, Ingress: []model.Rule{{Action: model.Allow, Ports: tcpPort(5353)}, {Action: model.Deny, Ports: tcpPort(25)}},
			Egress: []model.Rule{{Action: model.Deny, Ports: tcpPort(25)}}},
	})
	const undecided = "doNotTrack ingress allowed by default-allow doNotTrack ingress of host endpoint n1-all; "
	for _, c := range []struct {
		hook    sim.Hook
		ifindex int
		packet  string
		result  sim.Result
		want    string
	}{
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:5353 S", sim.Result{Action: sim.Pass}, "doNotTrack ingress allowed by GlobalNetworkPolicy fast ingress[0]"},
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:25 S", sim.Result{Action: sim.Drop, Reason: reason.UntrackedIngress}, "doNotTrack ingress denied by GlobalNetworkPolicy fast ingress[1]"},
		{sim.FromUplink, testUplink, "tcp 172.31.1.55:50000 > 172.31.1.8:9100 S", sim.Result{Action: sim.Pass},
			undecided + "preDNAT ingress allowed by default-allow preDNAT ingress of host endpoint n1-all; host ingress allowed by GlobalNetworkPolicy gate ingress[0]"},
		{sim.ToUplink, testUplink, "tcp 172.31.1.8:50000 > 8.8.8.8:25 S", sim.Result{Action: sim.Drop, Reason: reason.UntrackedEgress}, "doNotTrack egress denied by GlobalNetworkPolicy fast egress[0]"},
		{sim.FromWorkload, 7, "tcp 10.244.1.5:50000 > 8.8.8.8:25 S", sim.Result{Action: sim.Neigh, IfIndex: testUplink}, "forward egress allowed by "}, // no policy is about it
	} {
		if got := i.hostsSay(t, c.hook, c.ifindex, c.packet, c.result); got != c.want {
			t.Errorf("%s at %s:\n%s, want\n%s", c.packet, c.hook, got, c.want)
		}
	}
}

const testUplink, testWeir0 = 999_001, 999_002 // no interfaces of this machine

func tcpPort(n uint16) []model.PortRange {
	return []model.PortRange{{Protocol: model.ProtocolTCP, First: n, Last: n}}
}

// hostInquiry is an inquiry on a node with a host endpoint of all interfaces that the policies
// select.
func hostInquiry(t *testing.T, policies []*model.Policy) *inquiry {
	t.Helper()
	n, batch := newTestNode("n1"), whole()
	batch.HostEndpoints = map[string]*model.HostEndpoint{"n1-all": {Name: "n1-all", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"host": "yes"}}}
	for _, p := range policies {
		p.Kind, p.Tier, p.Subject = model.KindGlobalNetworkPolicy, model.TierDefault, model.Selector{Expression: "host == 'yes'"}
		batch.Policies[p.ID()] = p
	}
	n.cluster.Local.HostAddrs = []netip.Addr{netip.MustParseAddr("172.31.1.8")}
	n.update(batch)
	if len(n.state.HostEndpoints) == 0 {
		t.Fatalf("no host endpoint in\n%s", n.state)
	}
	return &inquiry{agent: n, ask: wire.Request{Protocol: model.ProtocolTCP}, state: n.state,
		places: dataplane.Places{Uplinks: map[int][6]byte{testUplink: {2}}, Host: testWeir0}}
}

// hostsSay is what host endpoints say of a packet at a hook, of which that becomes.
func (i *inquiry) hostsSay(t *testing.T, hook sim.Hook, ifindex int, text string, result sim.Result) (got string) {
	t.Helper()
	p, err := packet.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	result.Packet = p
	i.answer, i.result, i.in = &wire.Answer{}, result, sim.In{Hook: hook, IfIndex: ifindex, Packet: p}
	ends, settled, err := i.earlyEnds(t.Context())
	if err == nil && !settled {
		var more []wire.End
		more, err = i.hostEnds(t.Context())
		ends = append(ends, more...)
	}
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	for n, e := range ends {
		if n > 0 {
			got += "; "
		}
		got += fmt.Sprintf("%s %s %s by %s", e.Host, e.Direction, verdictWord(e.Explanation.Allow), e.Explanation.Rule)
		if !e.Agrees || e.Explanation.HostEndpoint != "n1-all" || e.Interface != fmt.Sprint("interface ", testUplink) {
			t.Errorf("%s: %+v", text, e)
		}
	}
	return got
}
