// SPDX-License-Identifier: Apache-2.0

package cilium

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/migrate/plan"
)

// kinds are Cilium's, by what takes their place; those that Cilium makes by itself have no text.
var kinds = map[string]struct{ resource, version, message, action string }{
	"CiliumNode":                     {"ciliumnodes", "v2", "", ""},
	"CiliumEndpoint":                 {"ciliumendpoints", "v2", "", ""},
	"CiliumEndpointSlice":            {"ciliumendpointslices", "v2alpha1", "", ""},
	"CiliumIdentity":                 {"ciliumidentities", "v2", "", ""},
	"CiliumBGPNodeConfig":            {"ciliumbgpnodeconfigs", "v2", "", ""},
	"CiliumGatewayClassConfig":       {"ciliumgatewayclassconfigs", "v2alpha1", "", ""},
	"CiliumNetworkPolicy":            {"ciliumnetworkpolicies", "v2", "is not read by Weir", "write it as a NetworkPolicy of projectcalico.org/v3"},
	"CiliumClusterwideNetworkPolicy": {"ciliumclusterwidenetworkpolicies", "v2", "is not read by Weir", "write it as a GlobalNetworkPolicy of projectcalico.org/v3"},
	"CiliumCIDRGroup":                {"ciliumcidrgroups", "v2", "is a GlobalNetworkSet", "write it as one, with a label that policies select"},
	"CiliumLoadBalancerIPPool":       {"ciliumloadbalancerippools", "v2", "is an IPPool with allowedUses LoadBalancer", services},
	"CiliumL2AnnouncementPolicy":     {"ciliuml2announcementpolicies", "v2alpha1", "addresses of load balancers are announced on their link without it", services},
	"CiliumBGPPeeringPolicy":         {"ciliumbgppeeringpolicies", "v2alpha1", "is a BGPConfiguration and BGPPeers", bgp},
	"CiliumBGPClusterConfig":         {"ciliumbgpclusterconfigs", "v2", "is a BGPConfiguration and BGPPeers", bgp},
	"CiliumBGPPeerConfig":            {"ciliumbgppeerconfigs", "v2", "is fields of BGPPeers", bgp},
	"CiliumBGPAdvertisement":         {"ciliumbgpadvertisements", "v2", "is fields of BGPConfiguration default, and BGPFilters", bgp},
	"CiliumBGPNodeConfigOverride":    {"ciliumbgpnodeconfigoverrides", "v2", "is annotations of Nodes", bgp},
	"CiliumEgressGatewayPolicy":      {"ciliumegressgatewaypolicies", "v2", "egress gateways are pods, by annotations and EgressGatewayPolicies", "see docs/guides/egress-gateways.md"},
	"CiliumPodIPPool":                {"ciliumpodippools", "v2alpha1", "is an IPPool", "write it as one, with the same addresses"},
	"CiliumNodeConfig":               {"ciliumnodeconfigs", "v2", "is a FelixConfiguration node.NAME for each of its nodes", ""},
	"CiliumLocalRedirectPolicy":      {"ciliumlocalredirectpolicies", "v2", "has no counterpart", ""},
	"CiliumEnvoyConfig":              {"ciliumenvoyconfigs", "v2", "has no counterpart: there is no proxy of the application layer", ""},
	"CiliumClusterwideEnvoyConfig":   {"ciliumclusterwideenvoyconfigs", "v2", "has no counterpart: there is no proxy of the application layer", ""},
	"CiliumExternalWorkload":         {"ciliumexternalworkloads", "v2", "has no counterpart", ""},
	"CiliumVTEPConfig":               {"ciliumvtepconfigs", "v2", "has no counterpart", ""},
}

// Kinds are those that a plan needs, as the API server lists them. Kinds moved from v2alpha1 to v2
// in the course of releases; what is not served is none.
func Kinds() []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[kind]
		if k.message == "" && kind != "CiliumNode" {
			continue
		}
		out = append(out, schema.GroupVersionResource{Group: Group, Version: k.version, Resource: k.resource})
		if k.version == "v2" && (strings.HasPrefix(kind, "CiliumBGP") || kind == "CiliumLoadBalancerIPPool" || kind == "CiliumCIDRGroup") {
			out = append(out, schema.GroupVersionResource{Group: Group, Version: "v2alpha1", Resource: k.resource})
		}
	}
	return out
}

func describe(u *unstructured.Unstructured) string {
	if ns := u.GetNamespace(); ns != "" {
		return u.GetKind() + " " + ns + "/" + u.GetName()
	}
	return u.GetKind() + " " + u.GetName()
}

func (p *planner) object(u *unstructured.Unstructured) {
	k, ok := kinds[u.GetKind()]
	if !ok {
		k.message = "is of a kind that Weir does not have"
	}
	object := describe(u)
	if k.message == "" || slices.ContainsFunc(p.Findings, func(f plan.Finding) bool { return f.Object == object && f.Field == "" }) {
		return // Cilium makes it by itself, or it came in two versions
	}
	p.Differs(object, "", "", k.message, k.action)
	if !strings.HasSuffix(u.GetKind(), "NetworkPolicy") {
		return
	}
	if spec, ok := u.Object["spec"].(map[string]any); ok {
		p.rule(object, "spec", spec)
	}
	specs, _ := u.Object["specs"].([]any)
	for i, s := range specs {
		if spec, ok := s.(map[string]any); ok {
			p.rule(object, fmt.Sprintf("specs[%d]", i), spec)
		}
	}
}

// without are fields of policies without a counterpart, by their names; a name is one wherever it
// is in a rule.
var without = map[string]string{
	"fromRequires": "has no counterpart", "toRequires": "has no counterpart",
	"fromGroups": "groups of a cloud have no counterpart: write their addresses as a GlobalNetworkSet", "toGroups": "groups of a cloud have no counterpart: write their addresses as a GlobalNetworkSet",
	"authentication":    "mutual authentication has no counterpart",
	"terminatingTLS":    "TLS is not ended by Weir",
	"originatingTLS":    "TLS is not ended by Weir",
	"serverNames":       "names in TLS have no counterpart",
	"listener":          "there is no proxy of the application layer",
	"http":              "rules of the application layer are not enforced: what is written in its place has to allow or deny the port",
	"kafka":             "rules of the application layer are not enforced: what is written in its place has to allow or deny the port",
	"l7":                "rules of the application layer are not enforced: what is written in its place has to allow or deny the port",
	"l7proto":           "rules of the application layer are not enforced: what is written in its place has to allow or deny the port",
	"enableDefaultDeny": "has no counterpart: a policy denies what it does not allow, in the directions of its types",
	"log":               "has no counterpart: flow records name the policy",
}

// elsewhere are fields whose counterpart has another form, which is easily taken for the same.
var elsewhere = map[string]string{
	"toFQDNs":      "is domains of an egress rule; names are learned from answers as docs/guides/domain-names.md says",
	"dns":          "rules on names that are asked for have no counterpart: domains allow the addresses of a name",
	"ingressDeny":  "is rules with action Deny, before those that allow",
	"egressDeny":   "is rules with action Deny, before those that allow",
	"toNodes":      "is a selector of HostEndpoints",
	"fromNodes":    "is a selector of HostEndpoints",
	"cidrGroupRef": "is a selector of a GlobalNetworkSet", "cidrGroupSelector": "is a selector of a GlobalNetworkSet",
	"toServices": "is services of an egress rule's destination",
}

// entities have these counterparts; others have none.
var entities = map[string]string{
	"world": "is notSelector all(), or notNets with the pools", "world-ipv4": "is notNets with the pools", "world-ipv6": "is notNets with the pools",
	"all": "is a rule without a source or destination", "cluster": "is selector all() and the nodes' addresses",
	"host": "is the nodes' addresses: pods' own node reaches them always", "remote-node": "is a selector of HostEndpoints, or the nodes' addresses",
	"kube-apiserver": "is services with kubernetes of namespace default", "none": "is a policy without rules",
}

// rule looks at all fields of a rule.
func (p *planner) rule(object, path string, of map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		at, value := path+"."+name, of[name]
		switch {
		case without[name] != "":
			p.Differs(object, at, "", without[name], "")
			continue
		case elsewhere[name] != "":
			p.Differs(object, at, "", elsewhere[name], "")
		case name == "fromEntities" || name == "toEntities":
			p.entities(object, at, value)
			continue
		case name == "nodeSelector" && strings.Count(path, ".") == 0:
			p.Differs(object, at, "", "a policy of nodes is a GlobalNetworkPolicy that selects HostEndpoints", "see docs/guides/host-endpoints.md")
			continue
		case strings.HasSuffix(name, "Selector") || name == "fromEndpoints" || name == "toEndpoints" || name == "labels":
			continue // labels have any name
		}
		p.below(object, at, value)
	}
}

func (p *planner) below(object, at string, value any) {
	switch v := value.(type) {
	case map[string]any:
		p.rule(object, at, v)
	case []any:
		for i, e := range v {
			p.below(object, fmt.Sprintf("%s[%d]", at, i), e)
		}
	}
}

func (p *planner) entities(object, at string, value any) {
	list, _ := value.([]any)
	for _, e := range list {
		name := fmt.Sprint(e)
		message, ok := entities[name]
		if !ok {
			message = "has no counterpart"
		}
		p.Differs(object, at, name, message, "")
	}
}
