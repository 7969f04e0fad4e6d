// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

func state(all map[string]model.QoS) *nodestate.State {
	s := &nodestate.State{QoS: map[string]nodestate.QoS{}, Routes: map[netip.Prefix]nodestate.Route{}, Addrs: map[netip.Addr]nodestate.Addr{}}
	for name, q := range all {
		s.QoS[name] = nodestate.QoS{QoS: q}
	}
	s.Routes[netip.MustParsePrefix("10.244.0.0/16")] = nodestate.Route{}
	s.Addrs[netip.MustParseAddr("172.30.0.8")] = nodestate.Addr{Kind: nodestate.AddrHost}
	s.Addrs[netip.MustParseAddr("fd00::8")] = nodestate.Addr{Kind: nodestate.AddrNode}
	return s
}

// as lets through what the limit says.
func as(_ side, most uint32) (uint32, string) { return most, "" }

// TestRender: there is a table where a pod needs one, with what its annotations say and no more.
func TestRender(t *testing.T) {
	t.Parallel()
	if Render(state(map[string]model.QoS{"a": {Egress: model.Limits{Bandwidth: 1e6}}}), as) != nil {
		t.Error("a table for bandwidth, which is queues'")
	}
	q := model.QoS{Ingress: model.Limits{PacketRate: 10}, Egress: model.Limits{Connections: 7}}
	got := Render(state(map[string]model.QoS{"a": q, "b\x01": {DSCP: 47}}), as)
	for chain, want := range map[string]string{"gets-a": "limit rate over 10/second burst 5 packets goto " + overRate, "opens-a": "ct count over 7 goto " + overCount} {
		if !slices.Equal(got.Chains[chain].Rules, []string{want}) {
			t.Errorf("%s: %q", chain, got.Chains[chain].Rules)
		}
	}
	for _, chain := range []string{"sends-a", "accepts-a"} {
		if _, is := got.Chains[chain]; is {
			t.Errorf("%s: %q", chain, got.Chains[chain].Rules)
		}
	}
	marks := strings.Split(got.Elements[mapSends]["b\x01"], " ")
	if rules := got.Chains[marks[len(marks)-1]].Rules; len(rules) != 2 || !strings.HasSuffix(rules[0], "ip dscp set 46") || !strings.HasSuffix(rules[1], "ip6 dscp set 46") {
		t.Errorf("%q: %q", marks, rules)
	}
	for set, want := range map[string]int{setCluster4: 2, setCluster6: 1} {
		if len(got.Elements[set]) != want {
			t.Errorf("%s: %v", set, got.Elements[set])
		}
	}
	if got := Render(state(map[string]model.QoS{"a": q}), nil); len(got.Chains["gets-a"].Rules) != 1 || got.Elements[mapOpens] != nil {
		t.Errorf("without connections: %v", got.Elements)
	}
}

// noCounts is a kernel that does not count connections.
type noCounts struct{ knftables.Interface }

func (n noCounts) Run(ctx context.Context, tx *knftables.Transaction) error {
	if strings.Contains(tx.String(), "ct count") {
		return errors.New("no nft_connlimit")
	}
	return n.Interface.Run(ctx, tx)
}

// TestApply: the table comes, changes and goes with the pods that need it; a kernel that does not
// count connections has the rest, and says what is missing.
func TestApply(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := knftables.NewFake(knftables.InetFamily, "weir")
	table := New(fake, nil)
	limited := state(map[string]model.QoS{"a": {Egress: model.Limits{PacketRate: 10}}})
	nettest.Must(t, table.Apply(ctx, limited))
	if text := fake.Dump(); !strings.Contains(text, "limit rate over 10/second") {
		t.Errorf("written:\n%s", text)
	}
	writes := table.Writes
	nettest.Must(t, table.Apply(ctx, limited))
	if table.Writes != writes {
		t.Error("the same is written again")
	}
	nettest.Must(t, table.Apply(ctx, state(nil)))
	if text := fake.Dump(); strings.Contains(text, "chain") {
		t.Errorf("left:\n%s", text)
	}

	lacking := New(noCounts{fake}, func(bool, func(conntrack.Entry)) error { return nil })
	counted := state(map[string]model.QoS{"a": {Egress: model.Limits{PacketRate: 10, Connections: 3}}})
	for range 2 {
		if err := lacking.Apply(ctx, counted); err == nil || !strings.Contains(err.Error(), "nft_connlimit") {
			t.Errorf("said: %v", err)
		}
	}
	if text := fake.Dump(); !strings.Contains(text, "limit rate over 10/second") || strings.Contains(text, "ct count") {
		t.Errorf("written:\n%s", text)
	}
	nettest.Must(t, lacking.Apply(ctx, limited))
}

// TestOlderConnections: connections that are open when a limit comes take places of it, until they
// are over; those that are no pod's, of the node's own processes, or over already take none. Rules
// that count begin anew with each change, so all that are open then are older ones.
func TestOlderConnections(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := knftables.NewFake(knftables.InetFamily, "weir")
	pod, peer, host := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.2.2"), netip.MustParseAddr("172.30.0.8")
	entry := func(src, dst netip.Addr, port uint16, state uint8) conntrack.Entry {
		e := conntrack.Entry{Orig: conntrack.Tuple{Src: src, Dst: dst, SrcPort: port, DstPort: 80, Proto: unix.IPPROTO_TCP}, TCP: conntrack.TCP{State: state}}
		e.Reply = e.Orig.Reversed()
		return e
	}
	open := []conntrack.Entry{
		entry(pod, peer, 1, conntrack.TCPEstablished), entry(pod, peer, 2, conntrack.TCPEstablished), entry(pod, peer, 3, conntrack.TCPTimeWait),
		entry(peer, pod, 4, conntrack.TCPEstablished), entry(host, pod, 5, conntrack.TCPEstablished), entry(peer, host, 6, conntrack.TCPEstablished),
	}
	table := New(fake, func(six bool, each func(conntrack.Entry)) error {
		for _, e := range open {
			if !six {
				each(e)
			}
		}
		return nil
	})
	s := state(map[string]model.QoS{"a": {Egress: model.Limits{Connections: 5}, Ingress: model.Limits{Connections: 5}}})
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "a"}
	rules := func(what, opens, accepts string) {
		t.Helper()
		for chain, want := range map[string]string{"opens-a": opens, "accepts-a": accepts} {
			var found []string
			for line := range strings.Lines(fake.Dump()) {
				if strings.HasPrefix(line, "add rule inet weir "+chain) {
					found = append(found, line)
				}
			}
			if len(found) != 1 || !strings.Contains(found[0], want) {
				t.Errorf("%s: %s: %q, want %q", what, chain, found, want)
			}
		}
	}
	nettest.Must(t, table.Apply(ctx, s))
	rules("a limit comes", "ct count over 3 ", "ct count over 4 ")
	nettest.Must(t, table.Apply(ctx, s))
	nettest.Must(t, table.Recount(ctx, s))
	writes := table.Writes
	nettest.Must(t, table.Recount(ctx, s))
	if table.Writes != writes {
		t.Error("rules are written although nothing is over")
	}
	open = slices.Concat(open[1:], []conntrack.Entry{entry(pod, peer, 7, conntrack.TCPEstablished), entry(pod, peer, 8, conntrack.TCPEstablished)})
	nettest.Must(t, table.Recount(ctx, s))
	rules("one is over, two have begun since", "ct count over 2 ", "ct count over 4 ")
	for port := range uint16(9) {
		open = append(open, entry(pod, peer, 20+port, conntrack.TCPSynSent))
	}
	lower := state(map[string]model.QoS{"a": {Egress: model.Limits{Connections: 4}, Ingress: model.Limits{Connections: 5}}})
	lower.Addrs = s.Addrs
	nettest.Must(t, table.Apply(ctx, lower))
	rules("a lower limit, and more are open", " goto "+overCount, "ct count over 4 ")
	open = nil
	nettest.Must(t, table.Recount(ctx, lower))
	rules("all are over", "ct count over 4 ", "ct count over 5 ")
}
