// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

func withBalancer() Inventory {
	inv := inventory()
	lb := poolOf("lb", "192.0.2.0/28", 28)
	lb.Workload, lb.LoadBalancer = false, true
	web := model.Name{Namespace: "shop", Name: "web"}
	inv.Pools = append(inv.Pools, lb)
	inv.Blocks = append(inv.Blocks, Block{CIDR: cidr("192.0.2.0/28"), Node: weirv1.LoadBalancers, Pool: "lb",
		Services: []ServiceAddress{{Address: addr("192.0.2.1"), Service: web, UID: "u1"}}})
	inv.Balancers = []Balancer{{Name: web, UID: "u1", Addrs: []netip.Addr{addr("192.0.2.1")}}}
	return inv
}

func TestShowAndCheckLoadBalancers(t *testing.T) {
	inv := withBalancer()
	if got := Check(inv); len(got) != 0 {
		t.Error("a clean cluster:", got)
	}
	if u := Show(inv); u.Pools[1].InUse != 1 || u.Pools[1].Blocks != 1 || u.Blocks[2].InUse != 1 {
		t.Errorf("%+v", u)
	}
	if got := Leaked(inv); len(got) != 0 {
		t.Error("a block of load balancers counts as leaked:", got)
	}
	for name, c := range map[string]struct {
		change func(*Inventory)
		want   []string
	}{
		"service gone":     {func(i *Inventory) { i.Balancers = nil }, []string{"IPAMBlock 192-0-2-0-28", "192.0.2.1", "shop/web", "leaked"}},
		"made anew":        {func(i *Inventory) { i.Balancers[0].UID = "u2" }, []string{"leaked", "no block holds"}},
		"not in status":    {func(i *Inventory) { i.Balancers[0].Addrs = nil }, []string{"192.0.2.1", "status does not name"}},
		"without a block":  {func(i *Inventory) { i.Balancers[0].Addrs = append(i.Balancers[0].Addrs, addr("192.0.2.2")) }, []string{"Service shop/web", "192.0.2.2"}},
		"a pod has it too": {func(i *Inventory) { i.Pods = append(i.Pods, podAt("thief", "n1", "192.0.2.1")) }, []string{"also belongs", "Service shop/web"}},
	} {
		inv := withBalancer()
		c.change(&inv)
		text := fmt.Sprint(Check(inv))
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s lacks %q", name, text, want)
			}
		}
	}
	if err := inv.releasable(inv.Blocks[2]); err == nil || !strings.Contains(err.Error(), "weir-controller") {
		t.Error(err)
	}
}

func TestFreeBlocks(t *testing.T) {
	p := poolOf("lb", "192.0.2.0/24", 26)
	var got []string
	for b := range FreeBlocks(p, []netip.Prefix{cidr("192.0.2.0/26"), cidr("192.0.2.128/28")}, []netip.Prefix{cidr("192.0.2.192/26")}) {
		got = append(got, b.String())
	}
	if fmt.Sprint(got) != "[192.0.2.64/26]" {
		t.Error(got)
	}
}
