// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"

	egressv3 "github.com/weir-net/weir/api/egress/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch/parse"
)

// everywhere is what a rule without a destination is about.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// ConvertEgressPolicy converts an EgressGatewayPolicy. One of whose rules cannot be read has none:
// what the rule is about would leave by another one, with another address.
func ConvertEgressPolicy(p *egressv3.EgressGatewayPolicy) (*model.EgressPolicy, []weirv1.Problem) {
	f := newFinding("EgressGatewayPolicy", p)
	out := &model.EgressPolicy{Name: p.Name}
	given := map[netip.Prefix]bool{}
	for i := range p.Spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		to, rule := f.egressDestination(at, p.Spec.Rules[i].Destination), f.egressRule(at, &p.Spec.Rules[i])
		for _, rule.CIDR = range to {
			if given[rule.CIDR] {
				f.egressProblem(at+".destination.cidr", rule.CIDR.String(), "is the destination of an earlier rule, too")
			}
			given[rule.CIDR] = true
			out.Rules = append(out.Rules, rule)
		}
	}
	if len(f.List) > 0 {
		out.Rules = nil
	}
	return out, f.List
}

// egressProblem reports what makes that a policy cannot be read.
func (f *finding) egressProblem(field, value, message string) {
	f.Add(field, value, message+"; nothing that leaves by the policy leaves the cluster", "correct it")
}

func (f *finding) egressDestination(at string, d *egressv3.EgressGatewayPolicyDestinationSpec) []netip.Prefix {
	if d == nil || d.CIDR == "" {
		return everywhere
	}
	cidr, err := parse.Prefix(d.CIDR, false)
	if err != nil {
		f.egressProblem(at+".destination.cidr", d.CIDR, err.Error())
		return nil
	}
	return []netip.Prefix{cidr}
}

func (f *finding) egressRule(at string, r *egressv3.EgressGatewayRule) (out model.EgressRule) {
	switch r.GatewayPreference {
	case "", "None":
	case "PreferNodeLocal":
		out.PreferLocal = true
	default:
		f.egressProblem(at+".gatewayPreference", r.GatewayPreference, "is neither None nor PreferNodeLocal")
	}
	if r.Gateway == nil {
		if out.PreferLocal {
			f.egressProblem(at+".gatewayPreference", r.GatewayPreference, "is of a rule without a gateway")
		}
		return model.EgressRule{Direct: true}
	}
	out.Selector, out.Namespaces = r.Gateway.Selector, r.Gateway.NamespaceSelector
	if _, err := selector.Parse(out.Selector); err != nil {
		f.egressProblem(at+".gateway.selector", out.Selector, err.Error())
	}
	if _, err := selector.Parse(out.Namespaces); err != nil {
		f.egressProblem(at+".gateway.namespaceSelector", out.Namespaces, err.Error())
	}
	if n := r.Gateway.MaxNextHops; n < 0 || n > math.MaxInt32 {
		f.egressProblem(at+".gateway.maxNextHops", strconv.Itoa(n), "is no number of gateways")
	} else {
		out.Most = uint32(n)
	}
	return out
}
