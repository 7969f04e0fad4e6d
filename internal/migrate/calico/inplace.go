// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
)

// Annotations by which a Node says what Calico knows of it.
const (
	annotationTunnel    = "projectcalico.org/IPv4VXLANTunnelAddr"
	annotationIPIP      = "projectcalico.org/IPv4IPIPTunnelAddr"
	annotationTunnelMAC = "projectcalico.org/VXLANTunnelMACAddr"
	annotationAddress   = "projectcalico.org/IPv4Address"
)

// tunnelAddr is the address that an annotation of a node has; invalid = none.
func tunnelAddr(n *corev1.Node, annotation string) netip.Addr {
	a, _ := netip.ParseAddr(n.Annotations[annotation])
	return a
}

// IPIPAddr is the address of a node's device of IP in IP with Calico; invalid = it has none.
func IPIPAddr(n *corev1.Node) netip.Addr { return tunnelAddr(n, annotationIPIP) }

// TunnelAddrs are the addresses of a node's tunnels with Calico.
func TunnelAddrs(n *corev1.Node) []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{tunnelAddr(n, annotationTunnel), IPIPAddr(n)}, func(a netip.Addr) bool { return !a.IsValid() })
}

// UsesIPIP reports whether nodes send by IP in IP for a pool in use.
func (c *Cluster) UsesIPIP() bool {
	return slices.ContainsFunc(c.Objects, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == "IPPool" && !flag(u, "spec", "disabled") && mode(u, "ipipMode") != never
	})
}

// mode is one of the modes of a pool's encapsulations.
func mode(pool *unstructured.Unstructured, field string) string {
	if m := text(pool, "spec", field); m != "" {
		return m
	}
	return never
}

// NewInPlace makes a plan of a change in which pods keep running: nodes are taken over as they are.
// Pools stay in use, and what could not be taken over stops it.
func NewInPlace(c *Cluster) *Plan {
	p := &planner{Cluster: c, plan: &Plan{}, inPlace: true}
	p.installation()
	p.network()
	p.copies()
	p.nodes()
	p.takenOver()
	plan.StopsFirst(p.plan.Findings)
	return p.plan
}

// takenOver finds what of the cluster cannot be taken over.
func (p *planner) takenOver() {
	if backend := p.backend(); p.Daemon != nil && backend != "vxlan" && backend != bird {
		p.stop("DaemonSet "+p.Daemon.Namespace+"/"+p.Daemon.Name, variableBackend, backend,
			"only vxlan and bird can be changed in place", "change node by node by drain")
	}
	for _, u := range p.plan.Copies {
		if u.GetKind() != "FelixConfiguration" {
			continue
		}
		if enabled, set, _ := unstructured.NestedBool(u.Object, "spec", "ipipEnabled"); set && !enabled && p.ipip {
			p.stop("FelixConfiguration "+u.GetName(), "spec.ipipEnabled", "false", "while a pool in use has an ipipMode, BIRD sends by a device that Felix does not make", "remove it, or set ipipMode: Never")
		}
		for _, field := range []string{"bpfEnabled", "wireguardEnabled", "wireguardEnabledV6", "ipv6Support"} {
			if flag(u, "spec", field) {
				p.stop("FelixConfiguration "+u.GetName(), "spec."+field, "true", "cannot be changed in place", "set it to false first, or change node by node by drain")
			}
		}
		for field, only := range map[string]string{"interfacePrefix": "cali", "nftablesMode": "Disabled"} {
			if v := text(u, "spec", field); v != "" && v != only {
				p.stop("FelixConfiguration "+u.GetName(), "spec."+field, v, "cannot be changed in place: it has to be "+only, "change node by node by drain")
			}
		}
	}
	for i := range p.Nodes {
		p.nodeInPlace(&p.Nodes[i])
	}
	p.links()
	for _, n := range p.plan.Nodes {
		for _, b := range n.Blocks {
			for _, a := range b.Allocations {
				if a.Node != "" && a.Node != b.Node {
					p.stop("IPAMBlock "+b.Name, "spec.allocations", a.Address.String(), "node "+a.Node+" has an address of a block of node "+b.Node+", which is not taken over",
						"delete pod "+a.Namespace+"/"+a.Pod+": it is made again with another address")
				}
			}
		}
	}
}

// variable is one of the environment of calico-node.
func (p *planner) variable(name string) corev1.EnvVar {
	for _, c := range p.Daemon.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if c.Name == NodeDaemon && e.Name == name {
				return e
			}
		}
	}
	return corev1.EnvVar{}
}

func (p *planner) nodeInPlace(n *corev1.Node) {
	object := "Node " + n.Name
	if n.Labels[corev1.LabelOSStable] == "windows" {
		p.stop(object, "metadata.labels["+corev1.LabelOSStable+"]", "windows", "Weir runs on Linux alone", "change node by node, without this one")
		return
	}
	for _, t := range []struct {
		inUse            bool
		annotation, what string
	}{{p.vxlan, annotationTunnel, "VXLAN"}, {p.ipip, annotationIPIP, "IP in IP"}} {
		if t.inUse && !tunnelAddr(n, t.annotation).Is4() {
			p.stop(object, "metadata.annotations["+t.annotation+"]", n.Annotations[t.annotation], "is not the IPv4 address of a tunnel: Calico does not run there with "+t.what,
				"see whether pod calico-node is ready on that node")
		}
	}
	if v := n.Annotations[annotationTunnelMAC]; v != "" {
		p.stop(object, "metadata.annotations["+annotationTunnelMAC+"]", v, "nodes with Weir send to the MAC address that Felix makes of the node's name", "remove it, and restart calico-node")
	}
	address, _, _ := strings.Cut(n.Annotations[annotationAddress], "/")
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && !strings.Contains(a.Address, ":") {
			if address != a.Address {
				p.stop(object, "metadata.annotations["+annotationAddress+"]", address, "Calico knows the node by another address than Weir would, its InternalIP "+a.Address,
					"set IP_AUTODETECTION_METHOD=kubernetes-internal-ip in DaemonSet calico-node")
			}
			return
		}
	}
	p.stop(object, "status.addresses", "", "has no InternalIP of IPv4", "")
}

// poolInPlace looks at a pool whose pods keep their addresses.
func (p *planner) poolInPlace(u *unstructured.Unstructured, cidr netip.Prefix) {
	object := "IPPool " + u.GetName()
	if flag(u, "spec", "disabled") {
		return
	}
	if !cidr.Addr().Is4() {
		p.stop(object, "spec.cidr", cidr.String(), "only IPv4 can be changed in place", "change node by node by drain")
	}
	routed := p.backend() == bird || p.Daemon == nil
	vxlan, ipip := mode(u, "vxlanMode"), mode(u, "ipipMode")
	p.vxlan, p.ipip = p.vxlan || vxlan != never, p.ipip || ipip != never
	for _, field := range []string{"vxlanMode", "ipipMode"} {
		switch mode(u, field) {
		case "Always", never:
		case "CrossSubnet":
			p.crossSubnet = true
		default:
			p.stop(object, "spec."+field, mode(u, field), "is none of Always, CrossSubnet and Never", "correct it")
		}
	}
	switch {
	case ipip != never && vxlan != never:
		p.stop(object, "spec.ipipMode", ipip, "the pool has a vxlanMode, too", "set one of both to Never")
	case ipip != never && !routed:
		p.stop(object, "spec.ipipMode", ipip, "with IP in IP only what BIRD routes can be changed in place",
			"set vxlanMode in its place before (docs/guides/migrate-from-calico.md#vxlan-in-the-place-of-ip-in-ip), or change node by node by drain")
	case ipip != never:
		p.differs(object, "spec.ipipMode", ipip, "nodes that are changed need a device of IP in IP in external mode: each kernel is asked for it before Calico ends there", "")
	case vxlan == never && !routed:
		p.stop(object, "spec.vxlanMode", text(u, "spec", "vxlanMode"), "without an encapsulation only what BIRD routes can be changed in place", "set it to Always or CrossSubnet while nodes change, or change node by node by drain")
	}
}

// links finds nodes of which only one takes the other for a neighbour. By the network of its
// address Felix decides what a node sends without encapsulation; what the other one does not expect
// so, it drops.
func (p *planner) links() {
	if !p.crossSubnet {
		return
	}
	networks := map[string]netip.Prefix{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Labels[corev1.LabelOSStable] == "windows" {
			continue
		}
		network, err := netip.ParsePrefix(n.Annotations[annotationAddress])
		if err != nil {
			p.stop("Node "+n.Name, "metadata.annotations["+annotationAddress+"]", n.Annotations[annotationAddress],
				"is not an address with the length of its network, by which pools with CrossSubnet tell neighbours", "see whether pod calico-node is ready on that node, or set the mode Always while nodes change")
			continue
		}
		networks[n.Name] = network
	}
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		for _, other := range slices.Sorted(maps.Keys(networks)) {
			if networks[name].Contains(networks[other].Addr()) && !networks[other].Contains(networks[name].Addr()) {
				p.stop("Node "+other, "metadata.annotations["+annotationAddress+"]", networks[other].String(),
					"is in the network "+networks[name].Masked().String()+" of node "+name+", which is not in its own: only one of them sends without encapsulation",
					"correct the length of their networks, or set the mode Always while nodes change")
			}
		}
	}
}
