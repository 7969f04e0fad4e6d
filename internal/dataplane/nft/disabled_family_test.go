// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/policy"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestFamilySwitchedOff: a family that the node no longer carries has a table all the same, which
// lets nothing from and to pods by.
func TestFamilySwitchedOff(t *testing.T) {
	d, fakes := fakeDriver(t)
	six := fakes[knftables.IPv6Family]
	apply(t, d, small())
	before := six.Dump()
	off := small()
	off.Settings.IPv6 = false
	apply(t, d, off)
	closed := six.Dump()
	for _, want := range []string{
		"add chain ip6 weir from-network { type filter hook prerouting priority -300 ; }",
		"add rule ip6 weir from-network iifname @workloads drop", `add rule ip6 weir from-network iifname "cali*" drop`,
		"add rule ip6 weir forwarded oifname @workloads drop", `add rule ip6 weir sent oifname "cali*" drop`,
		"add element ip6 weir workloads { cali1 }",
	} {
		if !strings.Contains(closed, want) {
			t.Errorf("without IPv6 the table lacks %q:\n%s", want, closed)
		}
	}
	if strings.Contains(closed, "judge") {
		t.Errorf("rules of before are left:\n%s", closed)
	}
	writes := d.Status().Writes
	apply(t, d, off)
	apply(t, openFake(t, fakes), off)
	if now := d.Status().Writes; now != writes || six.Dump() != closed {
		t.Errorf("the closed table is written again: %d operations", now-writes)
	}
	tx := six.NewTransaction() // the fake refuses what deletes rawPayloads
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{})
	for _, p := range rawPayloads {
		tx.Add(&knftables.Set{Name: p, Type: "inet_service"})
	}
	if err := six.Run(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	apply(t, d, small())
	if got := six.Dump(); got != before {
		t.Errorf("with IPv6 again the table is another than at first:\n%s", got)
	}
}

// failing is nftables that takes no transaction.
type failing struct {
	knftables.Interface
	err error
}

func (f *failing) Run(ctx context.Context, tx *knftables.Transaction) error {
	if f.err != nil {
		return f.err
	}
	return f.Interface.Run(ctx, tx)
}

// TestFailedTable: what could not be written is enforced for nobody, and opens nothing; what was
// there once goes on.
func TestFailedTable(t *testing.T) {
	nft := &failing{Interface: newFake(t, knftables.IPv4Family), err: errors.New("no space")}
	d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true, Tables: func(f knftables.Family) (knftables.Interface, error) {
		if f == knftables.IPv4Family {
			return nft, nil
		}
		return newFake(t, f), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	pod := model.LocalEndpoint{Interface: "cali1"}
	pod.Addrs = append(pod.Addrs, addr("10.244.1.2"))
	try := func(fails, enforced, stands bool) {
		t.Helper()
		if err := d.Apply(context.Background(), small(), nodestate.All()); (err != nil) != fails {
			t.Errorf("Apply: %v", err)
		}
		if err := d.Enforced(pod); (err == nil) != enforced {
			t.Errorf("Enforced: %v", err)
		}
		if got := d.tables[table.Family{}].inForce; got != stands {
			t.Errorf("the table is in force: %v", got)
		}
	}
	try(true, false, false)
	if !d.tables[table.Family{Six: true}].inForce {
		t.Error("the table of IPv6 was written, and is not in force")
	}
	nft.err = nil
	try(false, true, true)
	nft.err = errors.New("no space")
	d.tables[table.Family{}].MarkAbsent()
	try(true, false, true)
}

// TestAnotherFamilysPod: an interface whose pod has addresses of one family only is a pod's in the
// other one, too.
func TestAnotherFamilysPod(t *testing.T) {
	var have []string
	for name := range chains.Render(small(), true).Elements[expr.SetWorkloads] {
		have = append(have, name)
	}
	slices.Sort(have)
	if !slices.Equal(have, []string{"cali1", "cali2"}) {
		t.Errorf("workloads of IPv6: %v", have)
	}
}

// TestHeldByOtherNames: an interface of a pod that is not known has no addresses, and is told from
// others by the set where its name does not say that it is a pod's.
func TestHeldByOtherNames(t *testing.T) {
	s := small()
	s.Settings.Chained, s.Held = true, map[int]string{8: "cali8", 9: "veth9"}
	for _, six := range []bool{false, true} {
		rendered := chains.Render(s, six)
		names := rendered.Elements[expr.SetWorkloads]
		if _, is := names["veth9"]; !is || len(names) != 3 {
			t.Errorf("IPv6 %v: workloads: %v", six, names)
		}
		rules := strings.Join(rendered.Chains["from-network"].Rules, "\n")
		for _, want := range []string{"iifname @workloads goto from-workload", `iifname "cali*" drop`, map[bool]string{false: "ip saddr 169.254.172.0/22 drop", true: "ip6 saddr fd00::ac:0/118 drop"}[six]} {
			if !strings.Contains(rules, want) {
				t.Errorf("IPv6 %v: %q is not in\n%s", six, want, rules)
			}
		}
	}
}

// First packets are evaluated as soon as one pod is isolated, by the maps that lead to the sets;
// before, nothing is looked up for them.
func TestFirstPacketsAreEvaluated(t *testing.T) {
	for _, six := range []bool{false, true} {
		s, pod := small(), addr("10.244.1.3")
		if six {
			pod = addr("fd00:10::3")
		}
		asked := func() int {
			n := 0
			for _, rule := range chains.Render(s, six).Chains[policy.FirstPacketsChain].Rules {
				if strings.Contains(rule, "vmap @"+policy.MapIngress) || strings.Contains(rule, "vmap @"+policy.MapEgress) {
					n++
				}
			}
			return n
		}
		s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali2"}
		if n := asked(); n != 0 {
			t.Errorf("six %v: nobody is isolated, and %d maps are asked", six, n)
		}
		s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali2", Ingress: nodestate.Isolation{Set: 7, Rule: 1}}
		if n := asked(); n != 2 {
			t.Errorf("six %v: a pod is isolated, and %d maps are asked, want 2: %q", six, n, chains.Render(s, six).Chains[policy.FirstPacketsChain].Rules)
		}
	}
}
