// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/why/wire"
)

// TestWhyOnNftables: the answer comes from the rules in the kernel, agrees with what policy says,
// and says so when somebody changed the rules.
func TestWhyOnNftables(t *testing.T) {
	client, other := netip.MustParseAddr("10.244.1.6"), netip.MustParseAddr("172.31.1.9")
	clientEP := model.LocalEndpoint{Pod: model.Name{Namespace: "shop", Name: "cart"}, ContainerID: "c2", Interface: "cali2", IfIndex: 8, Addrs: []netip.Addr{client}}
	n, batch := newTestNode("n1"), whole()
	batch.Nodes["n2"] = &model.Node{Name: "n2", Addrs: []netip.Addr{other}, Subnets: []netip.Prefix{netip.MustParsePrefix("172.31.1.0/24")}}
	batch.Pods = map[model.Name]*model.Pod{web: {Name: web, Node: "n1", Labels: map[string]string{"app": "web"}, Addrs: []netip.Addr{webAddr}},
		clientEP.Pod: {Name: clientEP.Pod, Node: "n1", Addrs: []netip.Addr{client}}}
	closed := model.Name{Namespace: "shop", Name: "closed"}
	batch.Services = map[model.Name]*model.Service{closed: {Name: closed, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}}
	batch.Slices = map[model.Name]*model.EndpointSlice{closed: {Name: closed, Service: closed, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 8080}},
		Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{webAddr}, Node: "n1", Ready: true, Serving: true}}}}
	n.cluster.Local.HostAddrs, n.cluster.Local.LinkMTU = []netip.Addr{netip.MustParseAddr("172.31.1.8")}, 1500
	n.update(batch, webEP, clientEP)
	nettest.Run(t, func(string) error { return askTables(t, n) })
}

// askTables asks in the network namespace of its thread.
func askTables(t *testing.T, n *testNode) error {
	for name, l := range map[string]struct {
		index int
		addr  string
	}{"cali1": {7, "10.244.1.5/32"}, "cali2": {8, "10.244.1.6/32"}, "eth0": {20, "172.31.1.8/24"}} {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Index: l.index}, PeerName: name + "p"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		far, err := netlink.LinkByName(name + "p")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(link), netlink.LinkSetUp(far)); err != nil {
			return err
		}
		ip, subnet, _ := net.ParseCIDR(l.addr)
		if name == "eth0" {
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: subnet.Mask}}); err != nil {
				return err
			}
		} else if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.index, Dst: subnet, Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
	}
	d, err := nft.New(nft.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if err := d.Apply(context.Background(), n.state, nodestate.All()); err != nil {
		return err
	}
	n.plane = nftPlane{d}
	ask := func(hook, from, to string, port uint16) *wire.Answer {
		i := &inquiry{agent: n, state: n.state, answer: &wire.Answer{Node: "n1"}, ask: wire.Request{Hook: hook, Source: netip.MustParseAddr(from), SourcePort: 50000,
			Destination: netip.MustParseAddr(to), Port: port, Protocol: model.ProtocolTCP}}
		if err := i.run(context.Background()); err != nil {
			t.Errorf("%s %s > %s: %v", hook, from, to, err)
		}
		return i.answer
	}
	for _, c := range []struct {
		hook, from, to string
		port           uint16
		want           string
		asked          string // a set, with what it said
	}{
		{wire.FromWorkload, "10.244.1.6", "10.244.1.5", 8080, "dropped POLICY_INGRESS by default-deny shop/deny ingress", "ingress-of 10.244.1.5"},
		{wire.FromWorkload, "10.244.1.6", "10.96.0.1", 80, "dropped POLICY_INGRESS by default-deny shop/deny ingress", "services 10.96.0.1 . tcp . 80"},
		{wire.FromWorkload, "10.244.1.5", "10.244.1.6", 8080, "delivered local", "senders 10.244.1.5"},
		{wire.FromWorkload, "10.244.1.5", "172.31.1.77", 443, "left direct", ""},
		{wire.FromUplink, "172.31.1.55", "10.244.1.6", 8080, "delivered local", ""},
		{wire.FromUplink, "10.244.1.6", "10.244.1.5", 8080, "dropped SPOOFED", "senders 10.244.1.6"},
		{wire.ToUplink, "172.31.1.8", "10.244.1.5", 8080, "delivered local", ""}, // the node's own is never denied
		{wire.ToUplink, "172.31.1.8", "172.31.1.9", 443, "sent on direct", ""},
	} {
		got := ask(c.hook, c.from, c.to, c.port)
		o := got.Outcome
		said := o.Verdict + " " + o.Reason + o.Path
		if o.Rule != "" && o.Verdict == wire.Dropped {
			said += " by " + o.Rule
		}
		if said != c.want || len(got.Warnings) > 0 || got.Plane != "nftables" || got.Tables == nil || !got.Tables.Same || got.Tables.Rules < 50 {
			t.Errorf("%s %s > %s:%d: %s, want %s; %q %+v", c.hook, c.from, c.to, c.port, said, c.want, got.Warnings, got.Tables)
			continue
		}
		if c.asked != "" && !slices.ContainsFunc(got.Tables.Lookups, func(l wire.Lookup) bool { return l.Found && l.Set+" "+l.Key == c.asked }) {
			t.Errorf("%s %s > %s:%d: %s was not asked: %+v", c.hook, c.from, c.to, c.port, c.asked, got.Tables.Lookups)
		}
		for _, e := range got.Policies {
			if !e.Agrees {
				t.Errorf("%s > %s: %+v", c.from, c.to, e)
			}
		}
	}
	return tamper(t, func() *wire.Answer { return ask(wire.FromWorkload, "10.244.1.6", "10.96.0.1", 80) })
}

// tamper changes the kernel's tables behind the agent's back: each answer is the changed kernel's,
// and says that it is.
func tamper(t *testing.T, ask func() *wire.Answer) error {
	for _, c := range []struct{ command, verdict, warning string }{
		{"flush map ip weir ingress-of", wire.Delivered, "10.244.1.5 in set ingress-of is absent, and should be jump into-"},
		{"insert rule ip weir judge accept", wire.Delivered, "chain judge has 3 rules that are not those that were written"},
		{"flush map ip weir services", wire.Dropped, "in set services is absent"},
	} {
		if out, err := exec.Command("nft", strings.Fields(c.command)...).CombinedOutput(); err != nil {
			return fmt.Errorf("nft %s: %w: %s", c.command, err, out)
		}
		got := ask()
		if text := strings.Join(got.Warnings, "\n"); got.Outcome.Verdict != c.verdict || !strings.Contains(text, c.warning) || got.Tables == nil || got.Tables.Same {
			t.Errorf("after nft %s: %+v\n%s", c.command, got.Outcome, text)
		}
	}
	return nil
}
