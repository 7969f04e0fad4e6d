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

// A lab with it of IPv6 has the same machines with IPv4 besides, as clusters of IPv6 on EKS: nodes
// and pods have addresses of VPC6, each node a part of it for pods.
var (
	VPC6        = netip.MustParsePrefix("fd00:172:31::/63")
	VPCGateway6 = netip.MustParseAddr("fe80::1") // on each link
)

// podsOfNode6 is how many addresses of its part a node gives to pods.
const podsOfNode6 = 100

// SecondUplink is the second interface of a node in a VPC.
const SecondUplink = "eth1"

// MaxVPCWorkers is bounded by the addresses for pods: fewer than ten of an interface are no use.
const MaxVPCWorkers = 10

// Interface is a network interface of a node in a VPC.
type Interface struct {
	Name, MAC string
	Addr      netip.Addr   // its primary address
	Pods      []netip.Addr // its secondary addresses, which pods get
	Prefix    netip.Prefix // what of IPv6 the network leads to it besides, of which Pods are; none in labs of IPv4
}

// NewVPC plans a lab in a VPC: the machines of New, where each node has two interfaces and its
// share of the subnet's addresses for pods; of IPv6 one interface and a part of the network of
// IPv6.
func NewVPC(name string, workers int, family Family) (*Lab, error) {
	if family == Dual {
		return nil, fmt.Errorf("a VPC has pods of %s or of %s", IPv4, IPv6)
	}
	l, err := New(name, workers, family, false)
	if err != nil {
		return nil, err
	}
	if workers > MaxVPCWorkers {
		return nil, fmt.Errorf("%d workers: want 0 to %d in a VPC", workers, MaxVPCWorkers)
	}
	if family == IPv6 {
		l.inVPC6()
		return l, nil
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

// inVPC6 puts a lab of IPv6 in a VPC.
func (l *Lab) inVPC6() {
	l.VPC, l.Pods = true, VPC6
	nodes := byte(0)
	for i := range l.Machines {
		m := &l.Machines[i]
		if m.Far {
			continue
		}
		a := m.Addr.Addr()
		m.Addr = netip.PrefixFrom(a, 128)
		m.Families[0].Addr, m.Families[0].Gateway, m.Families[0].PodCIDR = m.Addr, VPCGateway6, netip.Prefix{}
		four := hostAddr(LAN, hostOf6(a))
		e := Interface{Name: Uplink, MAC: macOf(four), Addr: four}
		if m.IsNode() {
			nodes++
			b := VPC6.Addr().As16()
			b[9] = nodes
			e.Prefix = netip.PrefixFrom(netip.AddrFrom16(b), 80)
			for next := e.Prefix.Addr().Next(); len(e.Pods) < podsOfNode6; next = next.Next() {
				e.Pods = append(e.Pods, next)
			}
		}
		m.Interfaces = []Interface{e}
	}
}

// hostOf6 is the number of a machine by its address, see hostAddr.
func hostOf6(a netip.Addr) int {
	b := a.As16()
	return int(b[14])*100 + int(b[15]>>4)*10 + int(b[15]&15)
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
