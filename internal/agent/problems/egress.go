// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// maxEgress bounds the names in a status, each list.
const maxEgress = 100

// EgressGateways is what a node's state says of egress gateways; nil where they are not in force.
func EgressGateways(s *nodestate.State) *weirv1.EgressGatewaysStatus {
	if s == nil || !s.Settings.Gateways {
		return nil
	}
	out := &weirv1.EgressGatewaysStatus{}
	clients := map[netip.Addr]map[netip.Addr]bool{}
	for k, list := range s.Gateways {
		for _, g := range list {
			if clients[g] == nil {
				clients[g] = map[netip.Addr]bool{}
			}
			clients[g][k.Client] = true
		}
	}
	rules := rulesWithGateways(s)
	for a, v := range s.Addrs {
		if v.Kind != nodestate.AddrEndpoint {
			continue
		}
		if n := len(clients[a]); n > 0 {
			out.Gateways = append(out.Gateways, fmt.Sprintf("%s %s, for %d addresses of pods", v.Owner, a, n))
		}
		if !v.Gateways {
			continue
		}
		out.Clients++
		for _, to := range withoutGateways(s, a, rules) {
			out.Without = append(out.Without, fmt.Sprintf("%s %s%s", v.Owner, a, to))
		}
	}
	for a, down := range s.Probed {
		if down {
			out.Down = append(out.Down, a.String())
		}
	}
	for _, list := range []*[]string{&out.Gateways, &out.Without, &out.Down} {
		slices.Sort(*list)
		*list = (*list)[:min(len(*list), maxEgress)]
	}
	return out
}

// rulesWithGateways are the rules by policy that lead by gateways.
func rulesWithGateways(s *nodestate.State) map[nodestate.EgressPolicyID][]netip.Prefix {
	out := map[nodestate.EgressPolicyID][]netip.Prefix{}
	for to, group := range s.Egress.Rules {
		if group >= nodestate.GroupFirst {
			out[to.Policy] = append(out[to.Policy], to.CIDR)
		}
	}
	return out
}

// withoutGateways says where to an address of a pod has no gateway: "" = nothing of its leaves.
func withoutGateways(s *nodestate.State, a netip.Addr, rules map[nodestate.EgressPolicyID][]netip.Prefix) (out []string) {
	policy, has := s.Egress.Policies[a]
	if !has {
		if len(s.Gateways[nodestate.GatewayKey{Client: a}]) == 0 {
			out = append(out, "")
		}
		return out
	}
	for _, cidr := range rules[policy] {
		group := s.Egress.Rules[nodestate.EgressDestination{Policy: policy, CIDR: cidr}]
		if cidr.Addr().Is4() == a.Is4() && len(s.Gateways[nodestate.GatewayKey{Client: a, Group: group}]) == 0 {
			out = append(out, fmt.Sprintf(", to %s by EgressGatewayPolicy %s", cidr, s.Egress.Names[policy]))
		}
	}
	return out
}

// MissingEgressPolicies names the EgressGatewayPolicies that pods of a node name and that are not
// there.
func MissingEgressPolicies(n Node) []weirv1.Problem {
	if n.State == nil {
		return nil
	}
	var out []weirv1.Problem
	for _, name := range n.State.Egress.Missing {
		out = append(out, weirv1.Problem{Object: "Node " + n.Name, Field: "annotation " + model.AnnotationEgressPolicy, Value: name,
			Message: "pods of this node are to leave the cluster by it, and there is no EgressGatewayPolicy of this name: nothing of theirs leaves the cluster",
			Action:  "make it, or take the annotation away"}.Clip())
	}
	return out
}

// IdleEgress names the annotations of namespaces and of this node's pods that are to lead pods out
// by egress gateways, where the setting egressIPSupport is that they do not count.
func IdleEgress(c *model.Cluster) []weirv1.Problem {
	if c.Settings.Egress == model.EgressPerNamespaceOrPerPod {
		return nil
	}
	var out []weirv1.Problem
	note := func(object string, e *model.EgressClient, values string) {
		field, value := model.AnnotationEgressSelector, e.Selector
		switch {
		case e.Policy != "":
			field, value = model.AnnotationEgressPolicy, e.Policy
		case e.Selector == "":
			field, value = model.AnnotationEgressNamespaces, e.Namespaces
		}
		out = append(out, weirv1.Problem{Object: object, Field: "metadata.annotations[" + field + "]", Value: value,
			Message: "has no effect: pods leave the cluster as ever, by no egress gateway",
			Action:  "set egressIPSupport: " + values + " in FelixConfiguration default, or take the annotation away"}.Clip())
	}
	for name, n := range c.Namespaces {
		if n.Egress != nil && c.Settings.Egress == model.EgressDisabled {
			note("Namespace "+name, n.Egress, "EnabledPerNamespace")
		}
	}
	for p := range c.Pods.Egress() {
		if p.Egress != nil && p.Node == c.Local.Node {
			note("Pod "+p.Name.String(), p.Egress, "EnabledPerNamespaceOrPerPod")
		}
	}
	slices.SortFunc(out, func(a, b weirv1.Problem) int { return cmp.Compare(a.Object, b.Object) })
	return out
}
