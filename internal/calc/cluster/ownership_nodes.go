// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// acceptNodes returns the nodes with those of their addresses, subnets and link addresses that
// count. What was made for a node before is taken again where it is equal.
func acceptNodes(c *model.Cluster, h *Ownership, claims *podClaims, before map[string]*model.Node) (map[string]*model.Node, []Refusal) {
	out := make(map[string]*model.Node, len(c.Nodes))
	first := firstNodes(c)
	links := linksOf(c)
	var refused []Refusal
	for name, n := range c.Nodes {
		v, why := acceptNode(c, h, claims, n, first, links)
		refused = append(refused, why...)
		if was := before[name]; was != nil && (was == v || len(why) > 0 && reflect.DeepEqual(*was, *v)) {
			v = was
		}
		out[name] = v
	}
	return out, refused
}

// firstNodes returns which node has an address: of those that claim it the one that did first.
func firstNodes(c *model.Cluster) map[netip.Addr]*model.Node {
	out := make(map[netip.Addr]*model.Node, len(c.Nodes))
	for _, n := range c.Nodes {
		for _, a := range n.Addrs {
			if have := out[a]; have == nil || olderNode(n, have, a) < 0 {
				out[a] = n
			}
		}
	}
	return out
}

// olderNode compares two nodes by since when they claim an address.
func olderNode(a, b *model.Node, at netip.Addr) int {
	return cmp.Or(cmp.Compare(a.ClaimedAt(at), b.ClaimedAt(at)), strings.Compare(a.UID, b.UID), strings.Compare(a.Name, b.Name))
}

// linksOf returns which node has a link address: of those that publish it the oldest.
func linksOf(c *model.Cluster) map[[6]byte]*model.Node {
	out := make(map[[6]byte]*model.Node, len(c.Nodes))
	for _, n := range c.Nodes {
		if have := out[n.LinkAddress]; have == nil || olderNode(n, have, netip.Addr{}) < 0 {
			out[n.LinkAddress] = n
		}
	}
	return out
}

// acceptNode returns a node with what counts of it: itself, where all does.
func acceptNode(c *model.Cluster, h *Ownership, claims *podClaims, n *model.Node, first map[netip.Addr]*model.Node, links map[[6]byte]*model.Node) (*model.Node, []Refusal) {
	if n.Name == c.Local.Node {
		return n, nil // written by this machine
	}
	var refused []Refusal
	refuse := func(object, field, value, why string) {
		refused = append(refused, Refusal{Object: object + " " + n.Name, Field: field, Value: value, Why: why, Node: n.Name})
	}
	out := *n
	out.Addrs = keepOf(n.Addrs, func(a netip.Addr) bool {
		why := rejectNodeAddr(c, h, claims, n, first[a], a)
		if why != "" {
			refuse("Node", "status.addresses", a.String(), why)
		}
		return why == ""
	})
	out.Subnets = keepOf(n.Subnets, func(p netip.Prefix) bool {
		if slices.Contains(c.Local.Subnets, p) || slices.ContainsFunc(out.Addrs, p.Contains) {
			return true
		}
		refuse("NodeStatus", "status.subnets", p.String(), "has no address of the node in it")
		return false
	})
	if why, usual := rejectLinkAddr(c, &out, links[n.LinkAddress].Name); why != "" {
		if !usual {
			refuse("NodeStatus", "status.linkAddress", macText(n.LinkAddress), why)
		}
		out.LinkAddress = [6]byte{}
	}
	if refused == nil && out.LinkAddress == n.LinkAddress {
		return n, nil
	}
	return &out, refused
}

// keepOf returns the values that keep is true of: the list itself where it is true of all.
func keepOf[T any](all []T, keep func(T) bool) []T {
	var out []T
	for i, v := range all {
		switch ok := keep(v); {
		case ok && out != nil:
			out = append(out, v)
		case !ok && out == nil:
			out = append(make([]T, 0, len(all)), all[:i]...)
		}
	}
	if out == nil {
		return all
	}
	return out
}

// rejectNodeAddr says why an address is not another node's, "" when it is.
func rejectNodeAddr(c *model.Cluster, h *Ownership, claims *podClaims, n, first *model.Node, a netip.Addr) string {
	if first != n {
		return fmt.Sprintf("is the address of node %s, which has claimed it for longer", first.Name)
	}
	if p := claims.holder(h, a); p != nil && p.Node != n.Name {
		return fmt.Sprintf("is the address of pod %s on node %s", p.Name, p.Node)
	}
	if p := claims.of[h.Pods[a]].pod; p != nil && c.Settings.WorkloadRoutes && p.Node != n.Name && n.Since[a] > p.Created {
		return fmt.Sprintf("is the address of the older pod %s on node %s", p.Name, p.Node)
	}
	if b := h.BlockOf(a); b != nil && b.Node != n.Name && (b.Created <= n.ClaimedAt(a) || ofBalancer(b, n, a)) {
		return fmt.Sprintf("lies in the older block %s of node %s", b.CIDR, b.Node)
	}
	switch {
	case ofMachine(c, a):
		return "is an address of node " + c.Local.Node
	case ofService(c, a) && (n.Since[a] != 0 || h.ranged[a] <= n.ClaimedAt(a)):
		return "is in a range of cluster IPs"
	case n.Since[a] != 0:
		return ofOutside(c, n, a)
	}
	return ""
}

// rangedOf returns the addresses of nodes in ranges of cluster IPs (an operator's mistake, or a
// node's claim), with the creation time of the oldest Service that has it: a node keeps an address
// that it had before.
func rangedOf(c *model.Cluster) map[netip.Addr]int64 {
	var out map[netip.Addr]int64
	for _, n := range c.Nodes {
		for _, a := range n.Addrs {
			if ofService(c, a) {
				if out == nil {
					out = map[netip.Addr]int64{}
				}
				out[a] = math.MaxInt64
			}
		}
	}
	if out == nil {
		return nil
	}
	for _, svc := range c.Services {
		for _, a := range svc.ClusterIPs {
			if created, is := out[a]; is {
				out[a] = min(created, svc.Created)
			}
		}
	}
	return out
}

// ControlPlane is the label of nodes that have API servers. Kubelets cannot give it to themselves
// (NodeRestriction).
const ControlPlane = "node-role.kubernetes.io/control-plane"

// ofOutside says whose an address is that a node came to claim, and that was there before: a
// gateway of this node, or an API server. It may be the node's where the link finds the node there;
// and an API server's that of a node which is meant to have one and was given another address.
func ofOutside(c *model.Cluster, n *model.Node, a netip.Addr) string {
	if mac, known := c.Local.Neighbours[a]; known && mac == n.LinkAddress {
		return ""
	}
	_, hasServer := n.Labels[ControlPlane]
	switch {
	case slices.Contains(c.Local.Gateways, a):
		return "is a gateway of node " + c.Local.Node
	case hasServer:
		return ""
	case slices.ContainsFunc(c.Local.APIServers, func(at netip.AddrPort) bool { return at.Addr().Unmap() == a }):
		return "is where node " + c.Local.Node + " reaches an API server"
	}
	if sl := APIServersOf(c); sl != nil && slices.ContainsFunc(sl.Endpoints, func(e model.ServiceEndpoint) bool { return slices.Contains(e.Addrs, a) }) {
		return "is the address of an API server"
	}
	return ""
}

// ofBalancer reports whether an address that a node claims is a load balancer's in any case. A node
// that is reached by an address has it as its first: so blocks of load balancers take that from
// none that was there before them, even where somebody made a pool of nodes' addresses.
func ofBalancer(b *model.Block, n *model.Node, a netip.Addr) bool {
	return b.Node == LoadBalancers && a != n.NodeAddr() && a != n.NodeAddr6()
}

// rejectLinkAddr says why a node is not reached at the link address that it published, "" when it
// is. What the kernel's neighbour table has for one of the node's addresses decides; where it has
// nothing yet, an address that others have is not taken: of several nodes that publish it first has
// it, the oldest. It is usual that networks of clouds answer for their machines, with another one.
func rejectLinkAddr(c *model.Cluster, n *model.Node, first string) (why string, usual bool) {
	mac := n.LinkAddress
	if mac == [6]byte{} {
		return "", false
	}
	for _, a := range n.Addrs {
		if known, ok := c.Local.Neighbours[a]; ok && SameLink(&View{Cluster: c}, a) {
			if known != mac {
				return "is not the link address at which this node finds " + a.String() + ", " + macText(known), c.Settings.Chained
			}
			return "", false
		}
	}
	if first != n.Name {
		return "is published by the older node " + first + " too", false
	}
	for a, known := range c.Local.Neighbours {
		if known == mac {
			return "is the link address at which this node finds " + a.String(), false
		}
	}
	for _, i := range c.Local.Interfaces {
		if i.MAC == mac {
			return "is that of interface " + i.Name + " of node " + c.Local.Node, false
		}
	}
	return "", false
}

func macText(mac [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
}
