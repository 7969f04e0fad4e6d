// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

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

// TestRender: there is a table where a pod needs one, with what its annotations say and no more.
func TestRender(t *testing.T) {
	t.Parallel()
	if Render(state(map[string]model.QoS{"a": {Egress: model.Limits{Bandwidth: 1e6}}}), true) != nil {
		t.Error("a table for bandwidth, which is queues'")
	}
	q := model.QoS{Ingress: model.Limits{PacketRate: 10}, Egress: model.Limits{Connections: 7}}
	got := Render(state(map[string]model.QoS{"a": q, "b\x01": {DSCP: 47}}), true)
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
	if got := Render(state(map[string]model.QoS{"a": q}), false); len(got.Chains["gets-a"].Rules) != 1 || got.Elements[mapOpens] != nil {
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
	table := New(fake)
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

	lacking := New(noCounts{fake})
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
