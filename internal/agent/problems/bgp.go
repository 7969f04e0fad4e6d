// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"fmt"
	"net/netip"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/bgp/feed"
)

// bgpPatience is how long a session may take to begin, or to begin again, before it is a problem.
const bgpPatience = time.Minute

// BGP says what of BGP is not in force on a node: the process that has its sessions is not there
// (st is nil), has not done what it should, or a session is down. began is since when the agent
// works.
func BGP(n Node, st *feed.Status, began, now time.Time) []weirv1.Problem {
	if n.State == nil || n.State.BGP == nil {
		return nil
	}
	object := "Node " + n.Name
	var out []weirv1.Problem
	add := func(field, value, message, action string) {
		out = append(out, weirv1.Problem{Object: object, Field: field, Value: value, Message: message, Action: action}.Clip())
	}
	for _, name := range n.State.BGP.MissingFilters {
		add("BGP filters", name, "there is no BGPFilter of this name: it keeps out nothing", "make it, or take its name out of spec.filters")
	}
	for _, name := range n.State.BGP.UnknownCommunities {
		add("BGP communities", name, "no value is given for this name: no route gets it", "add it to spec.communities of BGPConfiguration default")
	}
	if st == nil {
		if now.Sub(began) < bgpPatience {
			return out
		}
		add("BGP", "", "BGP is configured, and no BGP process runs on this node: it learns nothing anew, and peers forget its routes",
			"see kubectl -n kube-system get ds,pods -l k8s-app=weir-bgp; the controller gives Nodes the label weir.dev/bgp, which the DaemonSet asks for")
		return out
	}
	if st.Err != "" {
		add("BGP", "", st.Err, "see kubectl -n kube-system logs ds/weir-bgp of this node")
	}
	if st.Routes.Err != "" {
		add("BGP routes", "", st.Routes.Err, "see ip route show proto 88 on the node")
	}
	if u := st.Routes.Unresolved; u > 0 {
		add("BGP routes", "", "the kernel does not have some learned routes: their next hops are not reached from this node",
			"have the router send itself as the next hop, or add a route to the next hops")
	}
	passive := map[netip.Addr]bool{}
	for _, p := range n.State.BGP.Peers {
		passive[p.Addr] = p.Passive
	}
	for _, p := range st.Peers {
		since := p.Since
		if since.Before(st.Since) {
			since = st.Since
		}
		if p.Established() || now.Sub(since) < bgpPatience {
			continue
		}
		message := "the session is not established"
		if passive[p.Addr] {
			message += "; this node waits for the other one to begin it"
		}
		if p.LastError != "" {
			message += "; it ended last by: " + p.LastError
		}
		add("BGP session", fmt.Sprintf("%s (%s), AS %d", p.Addr, p.Name, p.ASN), message, "see weir bgp neighbor, and whether the peer is there, has this node as its neighbour with these AS numbers, and the same password")
	}
	return out
}
