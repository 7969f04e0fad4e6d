// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"testing"
)

func TestVPC(t *testing.T) {
	for _, workers := range []int{0, 2, MaxVPCWorkers} {
		l, err := NewVPC("a", workers, IPv4)
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
		if _, err := NewVPC("a", n, IPv4); err == nil {
			t.Errorf("%d workers were accepted", n)
		}
	}
}

func TestVPC6(t *testing.T) {
	l, err := NewVPC("a", 2, IPv6)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]string{}
	for _, m := range l.Machines {
		if m.Far {
			if VPC6.Contains(m.Addr.Addr()) || len(m.Interfaces) > 0 {
				t.Errorf("%s is in the VPC: %v", m.Name, m)
			}
			continue
		}
		e := m.Interfaces[0]
		if len(m.Interfaces) != 1 || !VPC6.Contains(m.Addr.Addr()) || m.Addr.Bits() != 128 || !LAN.Contains(e.Addr) || m.Families[0].Gateway != VPCGateway6 {
			t.Errorf("%s: %+v", m.Name, m)
		}
		if m.IsNode() != (len(e.Pods) == podsOfNode6) || m.IsNode() != e.Prefix.IsValid() {
			t.Errorf("%s has the addresses %v of %s for pods", m.Name, e.Pods, e.Prefix)
		}
		for _, a := range append([]netip.Addr{m.Addr.Addr(), e.Addr}, e.Pods...) {
			if other := seen[a]; other != "" {
				t.Errorf("%s and %s have %s", m.Name, other, a)
			}
			if seen[a] = m.Name; a.Is6() && (!VPC6.Contains(a) || a != m.Addr.Addr() && !e.Prefix.Contains(a)) {
				t.Errorf("%s is not at %s", a, m.Name)
			}
		}
	}
	if worker, _ := l.Machine("worker1"); worker.Addr.String() != "fd00:172:31:1::207/128" || worker.Interfaces[0].Addr.String() != "172.31.1.207" {
		t.Errorf("worker1 is %+v", worker)
	}
	if l.PodCIDRs() != "fd00:172:31::/63" || l.Gateways(false)[0].String() != "fd00:172:31:1::1/128" || l.Gateways(true)[0].String() != "fd00:172:31:2::1/64" {
		t.Errorf("pods %s, gateways %v and %v", l.PodCIDRs(), l.Gateways(false), l.Gateways(true))
	}
	if _, err := NewVPC("a", 2, Dual); err == nil {
		t.Error("a VPC of both families was accepted")
	}
}
