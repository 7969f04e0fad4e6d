// SPDX-License-Identifier: Apache-2.0

// Package cilium says what a migration from Cilium to Weir means, from ConfigMap cilium-config, the
// objects of cilium.io, Nodes and Pods: which settings have a counterpart, and which fields of
// policies have none. Nodes with either do not reach each other's pods, so the plan is one of the
// whole cluster. It is pure, and changes nothing.
package cilium

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
)

// Name is the plugin's, and that of its DaemonSet; Group that of its objects.
const (
	Name  = "cilium"
	Group = "cilium.io"
)

const configMap = "cilium-config"

// Namespaces are those of its manifests and its chart.
var Namespaces = []string{"kube-system", "cilium"}

// Cluster is what a plan is made from.
type Cluster struct {
	plan.Common
	Daemon  *appsv1.DaemonSet // nil where there is none
	Config  *corev1.ConfigMap // nil where there is none
	Objects []*unstructured.Unstructured
}

// FromObjects sorts objects of any kind, such as those of a recorded cluster, into a Cluster.
func FromObjects(objects []*unstructured.Unstructured) (*Cluster, error) {
	c := &Cluster{}
	for _, u := range objects {
		if taken, err := c.Take(u); err != nil {
			return nil, err
		} else if taken {
			continue
		}
		var err error
		switch gk := u.GroupVersionKind().GroupKind(); {
		case gk.Group == Group:
			c.Objects = append(c.Objects, u)
		case gk.String() == "DaemonSet.apps" && u.GetName() == Name:
			c.Daemon, err = plan.As[appsv1.DaemonSet](u)
		case gk.String() == "ConfigMap" && u.GetName() == configMap:
			c.Config, err = plan.As[corev1.ConfigMap](u)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

type planner struct {
	*Cluster
	*plan.Plan
}

// New makes a plan.
func New(c *Cluster) *plan.Plan {
	p := &planner{Cluster: c, Plan: &plan.Plan{Plugin: Name}}
	if c.Daemon == nil {
		p.Stop("DaemonSet "+Name, "", "", "is not there: Cilium does not run here, or is kept by another program", "")
	} else {
		for _, container := range c.Daemon.Spec.Template.Spec.Containers {
			if container.Name == "cilium-agent" {
				p.Version = plan.Tag(container.Image)
			}
		}
	}
	if c.Config == nil {
		p.Stop("ConfigMap "+configMap, "", "", "is not there", "")
	} else {
		p.settings()
		p.replacements()
	}
	for _, u := range c.Objects {
		p.object(u)
	}
	p.AddNodes(p.Plan, p.networks())
	p.Sort()
	return p.Plan
}

// setting is what takes the place of one of cilium-config's.
type setting struct {
	message, action string
	stops           bool
	// unless are the values with which there is nothing to say; "" is one always.
	unless []string
}

var off = []string{"false", "disabled"}

const (
	bgp      = "see docs/guides/bgp.md"
	services = "see docs/reference/services.md"
)

// settings are those that differ with Weir; others are about Cilium alone.
var settings = map[string]setting{
	"cni-chaining-mode":             {"another network plugin gives pods their addresses", "see docs/guides/chaining.md", true, []string{"none"}},
	"ipam":                          {"gives pods addresses of a cloud's network, or of another program", "see docs/guides/chaining.md", true, []string{"kubernetes", "cluster-pool", "cluster-pool-v2beta", "multi-pool"}},
	"enable-ipv4":                   {"has no counterpart: Weir carries IPv4 always", "", false, []string{"true"}},
	"routing-mode":                  {"without encapsulation nodes in several subnets need BGP: vxlanMode is Never", bgp, false, []string{"tunnel"}},
	"tunnel-protocol":               {"has no counterpart: the pool has VXLAN", "", false, []string{"vxlan", "disabled"}},
	"tunnel-port":                   {"is vxlanPort of FelixConfiguration default", "", false, []string{"8472", "0"}},
	"kube-proxy-replacement":        {"Cilium leaves some Services to a kube-proxy; with eBPF Weir carries all, whether one runs or not", services, false, []string{"true", "strict"}},
	"enable-ipsec":                  {"IPsec has no counterpart; WireGuard does the same task", "set wireguardEnabled: true in FelixConfiguration default", false, off},
	"encrypt-node":                  {"is wireguardHostEncryptionEnabled of FelixConfiguration default", "", false, off},
	"enable-bgp-control-plane":      {"sessions are those of BGPConfigurations and BGPPeers", bgp, false, off},
	"cluster-id":                    {"a mesh of clusters has no counterpart", "", false, []string{"0"}},
	"identity-allocation-mode":      {"identities are in an etcd, which nobody has use for with Weir", "", false, []string{"crd"}},
	"enable-host-firewall":          {"policies of nodes are GlobalNetworkPolicies for HostEndpoints", "see docs/guides/host-endpoints.md", false, off},
	"enable-policy":                 {"pods without a policy are open with Weir", "write a GlobalNetworkPolicy that denies, where always is meant", false, []string{"default"}},
	"bpf-lb-mode":                   {"is bpfExternalServiceMode of FelixConfiguration default", "see docs/guides/dsr.md", false, []string{"snat"}},
	"bpf-lb-algorithm":              {"has no counterpart", services, false, []string{"random"}},
	"bpf-lb-acceleration":           {"has no counterpart: XDP is for doNotTrack policies alone", "", false, off},
	"node-port-range":               {"is kubeNodePortRanges of FelixConfiguration default", "", false, []string{"30000,32767"}},
	"enable-local-redirect-policy":  {"has no counterpart", "", false, off},
	"enable-egress-gateway":         {"egress gateways are pods", "see docs/guides/egress-gateways.md", false, off},
	"enable-ipv4-egress-gateway":    {"egress gateways are pods", "see docs/guides/egress-gateways.md", false, off},
	"enable-bandwidth-manager":      {"limits of pods are annotations", "see docs/reference/qos.md", false, off},
	"enable-bbr":                    {"has no counterpart: a pod's own sysctl chooses", "", false, off},
	"enable-gateway-api":            {"has no counterpart: run another controller of the Gateway API", "", false, off},
	"enable-ingress-controller":     {"has no counterpart: run another Ingress controller", "", false, off},
	"enable-envoy-config":           {"has no counterpart: there is no proxy of the application layer", "", false, off},
	"enable-l2-announcements":       {"addresses of load balancers are announced on their link", services, false, off},
	"enable-srv6":                   {"has no counterpart", "", false, off},
	"enable-multicast":              {"has no counterpart", "", false, off},
	"mesh-auth-enabled":             {"mutual authentication has no counterpart", "", false, off},
	"enable-ip-masq-agent":          {"networks that are left out of source NAT are IPPools that are disabled", "", false, off},
	"enable-hubble":                 {"flow records are Weir's, by the same API", "see docs/guides/hubble.md", false, off},
	"enable-ipv6-big-tcp":           {"has no counterpart", "", false, off},
	"enable-ipv4-big-tcp":           {"has no counterpart", "", false, off},
	"enable-xdp-prefilter":          {"is doNotTrack policies", "see docs/guides/host-endpoints.md", false, off},
	"enable-encryption-strict-mode": {"nothing goes in clear between nodes that have each other's keys", "see docs/guides/wireguard.md", false, off},
}

func (p *planner) settings() {
	for _, name := range slices.Sorted(maps.Keys(p.Config.Data)) {
		value := strings.TrimSpace(p.Config.Data[name])
		s, ok := settings[name]
		if !ok || value == "" || slices.Contains(s.unless, strings.ToLower(value)) {
			continue
		}
		object, field := "ConfigMap "+p.Config.Namespace+"/"+configMap, "data."+name
		if s.stops {
			p.Stop(object, field, value, s.message, s.action)
		} else {
			p.Differs(object, field, value, s.message, s.action)
		}
	}
}

func (p *planner) is(name, otherwise string) bool {
	v, ok := p.Config.Data[name]
	if !ok {
		v = otherwise
	}
	return v == "true"
}

// replacements makes the objects that take the place of settings.
func (p *planner) replacements() {
	const v3 = "projectcalico.org/v3"
	felix := map[string]any{"ipv6Support": p.is("enable-ipv6", "false")}
	if p.is("enable-wireguard", "false") {
		felix["wireguardEnabled"] = true
		felix["wireguardEnabledV6"] = p.is("enable-ipv6", "false")
	}
	if mtu, err := strconv.ParseInt(p.Config.Data["mtu"], 10, 64); err == nil && mtu > 0 {
		felix["vxlanMTU"] = mtu - 50
	}
	p.Plan.Objects = append(p.Plan.Objects, plan.Object(v3, "FelixConfiguration", "default", felix))
	mode := "Always"
	if v := p.Config.Data["routing-mode"]; v == "native" || v == "" && p.Config.Data["tunnel"] == "disabled" {
		mode = "Never"
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		for i, text := range strings.Fields(strings.ReplaceAll(p.Config.Data["cluster-pool-"+family+"-cidr"], ",", " ")) {
			cidr, err := netip.ParsePrefix(text)
			if err != nil {
				p.Stop("ConfigMap "+p.Config.Namespace+"/"+configMap, "data.cluster-pool-"+family+"-cidr", text, "cannot be read: "+err.Error(), "correct it")
				continue
			}
			name := "default"
			if family == "ipv6" {
				name += "-ipv6"
			}
			if i > 0 {
				name += "-" + strconv.Itoa(i+1)
			}
			p.Plan.Objects = append(p.Plan.Objects, plan.Object(v3, "IPPool", name, map[string]any{"cidr": cidr.Masked().String(), "vxlanMode": mode, "ipipMode": "Never",
				"natOutgoing": p.is("enable-"+family+"-masquerade", "true"), "nodeSelector": "all()"}))
		}
	}
}

// networks finds from which networks a node's pods have addresses: Cilium's objects say so, or the
// API server's Nodes.
func (p *planner) networks() func(*corev1.Node) []string {
	of := map[string][]string{}
	for _, u := range p.Cluster.Objects {
		if u.GetKind() == "CiliumNode" {
			of[u.GetName()], _, _ = unstructured.NestedStringSlice(u.Object, "spec", "ipam", "podCIDRs")
		}
	}
	return func(n *corev1.Node) []string {
		if found := of[n.Name]; len(found) > 0 {
			return found
		}
		return plan.PodCIDRs(n)
	}
}
