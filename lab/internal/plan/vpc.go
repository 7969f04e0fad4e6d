// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
)

// A lab with Amazon's VPC CNI is in a VPC of one subnet: machines have the addresses that they have
// in every lab, pods those below. client3 is behind the router, outside of the VPC.
var (
	VPC        = netip.MustParsePrefix("172.31.0.0/23")
	VPCGateway = netip.MustParseAddr("172.31.0.1")
)

// SecondUplink is the second interface of a node in a VPC.
const SecondUplink = "eth1"

// MaxVPCWorkers is bounded by the addresses for pods: fewer than ten of an interface are no use.
const MaxVPCWorkers = 10

// Interface is a network interface of a node in a VPC.
type Interface struct {
	Name, MAC string
	Addr      netip.Addr   // its primary address
	Pods      []netip.Addr // its secondary addresses, which pods get
}

// NewVPC plans a lab in a VPC: the machines of New, of IPv4, where each node has two interfaces and
// its share of the subnet's addresses for pods.
func NewVPC(name string, workers int) (*Lab, error) {
	l, err := New(name, workers, IPv4, false)
	if err != nil {
		return nil, err
	}
	if workers > MaxVPCWorkers {
		return nil, fmt.Errorf("%d workers: want 0 to %d in a VPC", workers, MaxVPCWorkers)
	}
	l.VPC, l.Pods = true, VPC
	next := VPCGateway.Next()
	each := 253 / (2 * (workers + 1)) // of 172.31.0.2 to 172.31.0.254
	for i := range l.Machines {
		m := &l.Machines[i]
		if m.Far {
			continue
		}
		m.Addr = netip.PrefixFrom(m.Addr.Addr(), VPC.Bits())
		m.Families[0].Addr, m.Families[0].Gateway = m.Addr, VPCGateway
		m.Families[0].PodCIDR = netip.Prefix{}
		addrs := []netip.Addr{m.Addr.Addr()}
		if m.IsNode() {
			addrs = append(addrs, second(m.Addr.Addr()))
		}
		for device, a := range addrs {
			e := Interface{Name: []string{Uplink, SecondUplink}[device], MAC: macOf(a), Addr: a}
			for range each {
				if m.IsNode() {
					e.Pods = append(e.Pods, next)
					next = next.Next()
				}
			}
			m.Interfaces = append(m.Interfaces, e)
		}
	}
	return l, nil
}

// second is the primary address of a node's second interface.
func second(first netip.Addr) netip.Addr {
	b := first.As4()
	if b[3] == controlPlaneHost {
		b[3] = controlPlaneHost + 1
	} else {
		b[3] -= 100
	}
	return netip.AddrFrom4(b)
}

// macOf is a locally administered address that names an IPv4 address.
func macOf(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("06:00:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// VNetPods is the subnet of pods in a lab with Azure CNI, whose machines are in another subnet of
// the same virtual network: that of every lab.
var VNetPods = netip.MustParsePrefix("172.31.0.0/24")

// NewVNet plans a lab in a virtual network of Azure: the machines of New, of IPv4. Each node has
// its share of the addresses of VNetPods, or with an overlay its part of PodCIDR. client3 is behind
// the router, outside of the network.
func NewVNet(name string, workers int, overlay bool) (*Lab, error) {
	l, err := New(name, workers, IPv4, false)
	if err != nil {
		return nil, err
	}
	if workers > MaxVPCWorkers {
		return nil, fmt.Errorf("%d workers: want 0 to %d in a virtual network", workers, MaxVPCWorkers)
	}
	l.VPC, l.Overlay, l.Pods = true, overlay, VNetPods
	if overlay {
		l.Pods = PodCIDR
	}
	next := VNetPods.Addr().Next().Next() // the first one is the subnet's gateway
	each := 253 / (workers + 1)
	for i := range l.Machines {
		m := &l.Machines[i]
		if m.Far {
			continue
		}
		e := Interface{Name: Uplink, MAC: macOf(m.Addr.Addr()), Addr: m.Addr.Addr()}
		if m.IsNode() && !overlay {
			m.Families[0].PodCIDR = netip.Prefix{}
			for range each {
				e.Pods = append(e.Pods, next)
				next = next.Next()
			}
		}
		m.Interfaces = []Interface{e}
	}
	return l, nil
}
