// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"testing"
)

func TestVPC(t *testing.T) {
	for _, workers := range []int{0, 2, MaxVPCWorkers} {
		l, err := NewVPC("a", workers)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]string{VPCGateway: "the VPC", Gateway: "the router"}
		macs := map[string]string{}
		for _, m := range l.Machines {
			if m.Far {
				if VPC.Contains(m.Addr.Addr()) || len(m.Interfaces) > 0 {
					t.Errorf("%s is in the VPC: %v", m.Name, m)
				}
				continue
			}
			if want := map[bool]int{true: 2, false: 1}[m.IsNode()]; len(m.Interfaces) != want || m.Interfaces[0].Addr != m.Addr.Addr() {
				t.Fatalf("%s has interfaces %v, want %d, the first of %s", m.Name, m.Interfaces, want, m.Addr)
			}
			if m.Addr.Bits() != VPC.Bits() || m.Families[0].Gateway != VPCGateway || m.Families[0].PodCIDR.IsValid() {
				t.Errorf("%s: %v, %v", m.Name, m.Addr, m.Families)
			}
			for _, e := range m.Interfaces {
				if m.IsNode() != (len(e.Pods) >= 10) {
					t.Errorf("%s of %s has %d addresses for pods", e.Name, m.Name, len(e.Pods))
				}
				if other := macs[e.MAC]; other != "" {
					t.Errorf("%s and %s have the MAC address %s", m.Name, other, e.MAC)
				}
				macs[e.MAC] = m.Name
				for _, a := range append([]netip.Addr{e.Addr}, e.Pods...) {
					if other := seen[a]; other != "" {
						t.Errorf("%s and %s have %s", m.Name, other, a)
					}
					if seen[a] = m.Name; !VPC.Contains(a) {
						t.Errorf("%s is outside of the VPC", a)
					}
				}
			}
		}
		if l.PodCIDRs() != "172.31.0.0/23" || l.Gateways(false)[0].String() != "172.31.1.1/23" || l.Gateways(true)[0].String() != "172.31.2.1/24" {
			t.Errorf("pods %s, gateways %v and %v", l.PodCIDRs(), l.Gateways(false), l.Gateways(true))
		}
	}
	for _, n := range []int{-1, MaxVPCWorkers + 1} {
		if _, err := NewVPC("a", n); err == nil {
			t.Errorf("%d workers were accepted", n)
		}
	}
}
