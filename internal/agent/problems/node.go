// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// recentRepair is for how long a repair is reported.
const recentRepair = 10 * time.Minute

// FullMaps names the maps that are nearly full. The text has no numbers that move: the metrics have
// them.
func FullMaps(node string, all []dataplane.Pressure) []weirv1.Problem {
	var out []weirv1.Problem
	for _, p := range all {
		if !p.High() {
			continue
		}
		action := "use less of it, or report this: the size is fixed"
		if p.Setting != "" {
			action = "raise FelixConfiguration spec." + p.Setting + " and restart the agent"
		}
		name := "map " + p.Map
		if p.Family != "" {
			name += " of " + p.Family
		}
		out = append(out, weirv1.Problem{Object: "Node " + node, Field: name, Value: fmt.Sprintf("more than 90 %% of %d entries", p.Capacity),
			Message: "the map is nearly full: what comes beyond is not carried, or evicts what was used least", Action: action})
	}
	return out
}

// FullestTables are those of which one percent at least is in use, the fullest first.
func FullestTables(all []dataplane.Pressure) []weirv1.Table {
	var out []weirv1.Table
	for _, p := range all {
		if percent := int32(min(100*int64(p.Entries)/int64(max(p.Capacity, 1)), 100)); percent > 0 {
			out = append(out, weirv1.Table{Name: p.Map, Family: p.Family, Percent: percent, Capacity: int64(p.Capacity)})
		}
	}
	slices.SortStableFunc(out, func(a, b weirv1.Table) int { return cmp.Compare(b.Percent, a.Percent) })
	return out[:min(len(out), weirv1.MaxTables)]
}

// ConnectionTable is a table of connections of which a pod that has too many begins no more.
type ConnectionTable struct {
	Share   string // in words: what too many are
	Setting string // of its size
}

// BusyPods name the pods that begin no connections because they have too many, in eBPF's table or
// in that of connection tracking.
func BusyPods(held []dataplane.HeldPod, of ConnectionTable, owner func(netip.Addr) (model.Name, string, bool)) []weirv1.Problem {
	var out []weirv1.Problem
	for _, h := range held {
		object := "address " + h.Addr.String()
		if name, _, ok := owner(h.Addr); ok {
			object = "Pod " + name.String()
		}
		out = append(out, weirv1.Problem{Object: object, Value: of.Share, Message: "the table is nearly full and the pod has more than its share: it begins no further connection",
			Action: "see what it connects to; else raise " + of.Setting})
	}
	return out
}

// PodsWithoutPorts name the pods that have used up their ports for source NAT towards a
// destination, and try on.
func PodsWithoutPorts(spent []dataplane.ExhaustedPod, owner func(netip.Addr) (model.Name, string, bool)) []weirv1.Problem {
	var out []weirv1.Problem
	for _, p := range spent {
		if !p.Recent {
			continue
		}
		object := "address " + p.Addr.String()
		if name, _, ok := owner(p.Addr); ok {
			object = "Pod " + name.String()
		}
		out = append(out, weirv1.Problem{Object: object, Value: "all ports for source NAT towards one destination that a pod may have",
			Message: "it begins no further connection to that destination, but for those that eBPF gives the ports of its flows that nobody has answered; other pods are not concerned",
			Action:  "see what it connects to; else widen FelixConfiguration spec.bpfPSNATPorts"})
	}
	return out
}

// minMTU6 is the smallest MTU of a link that carries IPv6 (RFC 8200, section 5), bytes.
const minMTU6 = 1280

// Addresses says which of the node's addresses are nowhere, or missing, and when links are too
// small.
func Addresses(n Node) []weirv1.Problem {
	var out []weirv1.Problem
	for _, addr := range n.Machine.Missing {
		out = append(out, weirv1.Problem{Object: "Node " + n.Name, Field: "status.addresses", Value: addr.String(),
			Message: "no interface of this machine has the address; other nodes cannot reach its pods",
			Action:  "give it to an interface, or set kubelet's --node-ip"})
	}
	if s := n.State; s != nil && s.Settings.IPv6 && s.Settings.PodMTU > 0 && s.Settings.PodMTU < minMTU6 {
		out = append(out, weirv1.Problem{Object: "Node " + n.Name, Field: "MTU of pods", Value: strconv.Itoa(s.Settings.PodMTU),
			Message: "IPv6 needs 1280 bytes at least: the kernel of a pod takes no IPv6 address",
			Action:  "raise the MTU of the uplink or spec.vxlanMTU of FelixConfiguration default, less 20 bytes for VXLAN over IPv6, or do without IPv6"})
	}
	if s := n.State; s != nil && n.IPv6Pool && s.Settings.IPv6 && !s.Settings.Node6.IsValid() {
		out = append(out, weirv1.Problem{Object: "Node " + n.Name, Field: "status.addresses",
			Message: "the cluster has an IPPool of IPv6, and this node no IPv6 address: no other node reaches the IPv6 addresses of its pods",
			Action:  "name one in kubelet's --node-ip, or set ipv6Support: false in FelixConfiguration node." + n.Name})
	}
	return out
}

// Unfit says which policies take more of the node than there is.
func Unfit(n Node) []weirv1.Problem {
	if n.State == nil {
		return nil
	}
	var out []weirv1.Problem
	for _, r := range n.State.Unfit {
		p := weirv1.Problem{Object: "Policies " + r.Name, Field: r.Detail, Message: "are too large together for this node: the pods that they select are cut off",
			Action: "use fewer rules, ports and selectors; where it is for the networks in them, raise FelixConfiguration spec.bpfMapSizeIPSets and restart the agent"}
		if r.Kind != "policy-too-large" {
			p.Message = "would be too large together for this node: what the staged ones would do to the pods that they select is not found out"
		}
		out = append(out, p)
	}
	return out
}

// Overlaps says what is not in force of pools that cover what nodes need.
func Overlaps(overlaps []calc.PoolOverlap) []weirv1.Problem {
	var out []weirv1.Problem
	for _, o := range overlaps {
		message := "covers " + o.What + ": the pool is refused; it is not routed but for blocks that it has already, and no address of it is given"
		if o.Gives {
			message = "covers " + o.What + ": it is not routed but for its blocks"
		}
		out = append(out, weirv1.Problem{Object: "IPPool " + o.Pool, Field: "spec.cidr", Value: o.CIDR.String(), Message: message,
			Action: "make a pool with a network of its own, move its pods there, and delete this one"})
	}
	return out
}

// Node is what problems of a node are about.
type Node struct {
	Name          string
	State         *nodestate.State // nil = the cluster was not read yet
	Machine       machine.Facts
	HostEndpoints []*model.HostEndpoint // of this node, by name
	IPv6Pool      bool                  // the cluster has an IPPool of IPv6
}

// Repairs says what somebody else removed of late; nothing while that is long ago.
func Repairs(node string, st dataplane.Status) []weirv1.Problem {
	if time.Since(st.Repaired) >= recentRepair {
		return nil
	}
	var n uint64
	for _, r := range st.Repairs {
		n += r
	}
	return []weirv1.Problem{{Object: "Node " + node,
		Message: fmt.Sprintf("programs, devices or routes of Weir were removed by somebody else and put back, %d times since the agent started, last at %s",
			n, st.Repaired.UTC().Format(time.RFC3339)),
		Action: "look in the agent's log for what, and stop what removes them"}}
}

// NoUplinks says that no interface is an uplink.
func NoUplinks(pattern string) weirv1.Problem {
	return weirv1.Problem{Object: "FelixConfiguration", Field: "spec.bpfDataIfacePattern", Value: pattern,
		Message: "no interface of this node matches; nothing from outside reaches pods and Services", Action: "name the uplinks"}
}
