// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// TestMachineAddress: an address that a virtual machine keeps is given to its pods alone, also
// where it lies in no block of the node, and not by asking for it.
func TestMachineAddress(t *testing.T) {
	const far = "10.0.0.70" // in the block of another node
	kept := map[netip.Addr]bool{addr("10.0.0.1"): true, addr(far): true}
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{Kept: func(a netip.Addr) string {
		if kept[a] {
			return "virtual machine shop/a keeps it"
		}
		return ""
	}})
	a.Configure(Config{Pools: []model.Pool{poolOf("four", "10.0.0.0/24", 26)}})
	ctx := context.Background()
	asks := reqFor("asks")
	asks.IPv6, asks.Fixed = false, []netip.Addr{addr("10.0.0.1")}
	_, err := a.Allocate(ctx, asks)
	wantError(t, err, true, "10.0.0.1", "virtual machine shop/a")
	for i := range 62 { // all others of the block
		r := reqFor("c" + string(rune('0'+i)))
		r.IPv6 = false
		got, err := a.Allocate(ctx, r)
		if err != nil || kept[got[0].Address] {
			t.Fatalf("%v, %v", got, err)
		}
	}
	machine := reqFor("machine")
	machine.IPv6, machine.Granted, machine.Fixed = false, true, []netip.Addr{addr(far)}
	if got, err := a.Allocate(ctx, machine); err != nil || len(got) != 1 || got[0].Address != addr(far) {
		t.Errorf("the machine's pod: %v, %v", got, err)
	}
}

// TestCheckMachines: what a virtual machine keeps lies in another block, is in two pods while it is
// moved, and is not given back by hand.
func TestCheckMachines(t *testing.T) {
	b, ok := ConvertBlock(&weirv1.IPAMBlock{Spec: weirv1.IPAMBlockSpec{CIDR: "10.0.0.7/32", Node: "gone", VirtualMachine: &weirv1.BlockVirtualMachine{Name: "shop/a"}}})
	if !ok || b.Machine != "shop/a" {
		t.Fatalf("%+v", b)
	}
	inv := Inventory{Pools: []model.Pool{poolOf("four", "10.0.0.0/24", 26)}, Nodes: map[string]bool{"n1": true, "n2": true},
		Blocks: []Block{{CIDR: netip.MustParsePrefix("10.0.0.0/26"), Node: "n1"}, b, {CIDR: netip.MustParsePrefix("10.0.0.64/26"), Node: "n2"}}}
	for _, node := range []string{"n1", "n2"} {
		inv.Pods = append(inv.Pods, &model.Pod{Name: model.Name{Namespace: "shop", Name: "launcher-" + node}, Node: node, Addrs: []netip.Addr{addr("10.0.0.7")}})
	}
	if found := Check(inv); len(found) > 0 {
		t.Errorf("%v", found)
	}
	if leaked := Leaked(inv); len(leaked) > 0 {
		t.Errorf("leaked: %v", leaked)
	}
	err := ReleaseBlock(context.Background(), inv, b.CIDR, nil)
	wantError(t, err, false, "10.0.0.7", "shop/a")
}
