// SPDX-License-Identifier: Apache-2.0

// Package kuberouter says what a migration from kube-router to Weir means, from the flags of its
// DaemonSet, its annotations of Nodes and Services, Pods and NetworkPolicies. Nodes with either do
// not reach each other's pods, so the plan is one of the whole cluster. It is pure, and changes
// nothing.
package kuberouter

import (
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
)

// Name is the plugin's, and that of its DaemonSet in all of its manifests.
const Name = "kube-router"

// Namespaces are those of its manifests.
var Namespaces = []string{"kube-system"}

// prefix begins the annotations that it reads.
const prefix = "kube-router.io/"

// Cluster is what a plan is made from.
type Cluster struct {
	plan.Common
	Daemon   *appsv1.DaemonSet // nil where there is none
	Services []corev1.Service
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
		switch gk := u.GroupVersionKind().GroupKind().String(); {
		case gk == "DaemonSet.apps" && u.GetName() == Name:
			d, err := plan.As[appsv1.DaemonSet](u)
			if err != nil {
				return nil, err
			}
			c.Daemon = d
		case gk == "Service":
			s, err := plan.As[corev1.Service](u)
			if err != nil {
				return nil, err
			}
			c.Services = append(c.Services, *s)
		}
	}
	return c, nil
}

// counterpart is what takes the place of a flag or an annotation with Weir.
type counterpart struct {
	message, action string
	stops           bool
	// unless is the value with which there is nothing to say.
	unless string
}

const (
	bgpGuide = "see docs/guides/bgp.md"
)

// flags are those that differ with Weir when they are set; others are about kube-router alone.
var flags = map[string]counterpart{
	"run-router":                 {message: "another program routes between pods", stops: true, unless: "true", action: "migrate from that one"},
	"enable-cni":                 {message: "another network plugin gives pods their addresses", stops: true, unless: "true", action: "see docs/guides/chaining.md"},
	"enable-ipv4":                {message: "has no counterpart: Weir carries IPv4 always", unless: "true"},
	"run-service-proxy":          {message: "IPVS ends with kube-router: Weir carries Services, and their schedulers have no counterpart", unless: "false", action: "see docs/reference/services.md"},
	"enable-overlay":             {message: "without encapsulation nodes in several subnets need BGP", unless: "true", action: bgpGuide},
	"overlay-type":               {message: "encapsulates within a subnet too: vxlanMode is Always", unless: "subnet"},
	"overlay-encap":              {message: "IP in IP in UDP has no counterpart; the pool has VXLAN", unless: "ipip"},
	"enable-ibgp":                {message: "without a mesh between nodes", unless: "true", action: "set nodeToNodeMeshEnabled: false in BGPConfiguration default"},
	"nodes-full-mesh":            {message: "without a mesh between all nodes", unless: "true", action: "set nodeToNodeMeshEnabled: false in BGPConfiguration default"},
	"cluster-asn":                {message: "is asNumber of BGPConfiguration default", unless: "64512", action: bgpGuide},
	"peer-router-ips":            {message: "each is a BGPPeer", action: bgpGuide},
	"peer-router-asns":           {message: "is asNumber of the BGPPeers"},
	"peer-router-ports":          {message: "is peerIP with a port, of the BGPPeers"},
	"peer-router-passwords":      {message: "is a Secret, of which the BGPPeers' password names the key", action: bgpGuide},
	"peer-router-passwords-file": {message: "is a Secret, of which the BGPPeers' password names the key", action: bgpGuide},
	"peer-router-multihop-ttl":   {message: "is ttlSecurity of the BGPPeers, or has no counterpart", action: bgpGuide},
	"advertise-cluster-ip":       {message: "is serviceClusterIPs of BGPConfiguration default", unless: "false", action: bgpGuide},
	"advertise-external-ip":      {message: "is serviceExternalIPs of BGPConfiguration default", unless: "false", action: bgpGuide},
	"advertise-loadbalancer-ip":  {message: "is serviceLoadBalancerIPs of BGPConfiguration default", unless: "false", action: bgpGuide},
	"advertise-pod-cidr":         {message: "pods are advertised, unless a BGPFilter says otherwise", unless: "true", action: bgpGuide},
	"bgp-graceful-restart":       {message: "is on with Weir", unless: "true"},
	"override-nexthop":           {message: "is nextHopMode of the BGPPeers", unless: "false", action: bgpGuide},
	"run-loadbalancer":           {message: "addresses of load balancers come from an IPPool with allowedUses LoadBalancer", unless: "false", action: "see docs/reference/services.md"},
	"loadbalancer-ip-range":      {message: "is the cidr of an IPPool with allowedUses LoadBalancer", action: "see docs/reference/services.md"},
	"masquerade-all":             {message: "has no counterpart: the sources of Services' traffic stay where they can", unless: "false"},
	"hairpin-mode":               {message: "a pod reaches itself through its Service always", unless: "true"},
	"excluded-cidrs":             {message: "has no counterpart: no IPVS is there", action: ""},
	"service-external-ip-range":  {message: "is what Services may name: weir install --service-external-ips", action: ""},
	"enable-pod-egress":          {message: "natOutgoing of the pool is false", unless: "true"},
}

// annotations are those of Nodes and Services that differ with Weir.
var annotations = map[string]counterpart{
	"peers":                          {message: "each is a BGPPeer with the node's name in spec.node", action: bgpGuide},
	"peer.ips":                       {message: "each is a BGPPeer with the node's name in spec.node", action: bgpGuide},
	"peer.asns":                      {message: "is asNumber of these BGPPeers"},
	"peer.passwords":                 {message: "is a Secret, of which the BGPPeers' password names the key", action: bgpGuide},
	"peer.localips":                  {message: "is sourceAddress of these BGPPeers, which has no address of its own", action: bgpGuide},
	"node.asn":                       {message: "is the annotation projectcalico.org/ASNumber, or asNumber of BGPConfiguration node.NAME", action: bgpGuide},
	"rr.server":                      {message: "is the annotation projectcalico.org/RouteReflectorClusterID", action: bgpGuide},
	"rr.client":                      {message: "is a BGPPeer that selects the reflectors", action: bgpGuide},
	"path-prepend.as":                {message: "is an operation of a BGPFilter", action: bgpGuide},
	"path-prepend.repeat-n":          {message: "is an operation of a BGPFilter", action: bgpGuide},
	"node.bgp.customimportreject":    {message: "is a BGPFilter", action: bgpGuide},
	"pod-cidr":                       {message: "has no effect with Weir: blocks of the pool are claimed by nodes", action: "give the node a pool of its own by nodeSelector, where that matters"},
	"pod-cidrs":                      {message: "has no effect with Weir: blocks of the pool are claimed by nodes", action: "give the node a pool of its own by nodeSelector, where that matters"},
	"service.scheduler":              {message: "has no counterpart: no IPVS is there"},
	"service.schedflags":             {message: "has no counterpart: no IPVS is there"},
	"service.dsr":                    {message: "direct server return is a setting of all Services (bpfExternalServiceMode: DSR)", action: "see docs/guides/dsr.md"},
	"service.local":                  {message: "is internalTrafficPolicy and externalTrafficPolicy of the Service", action: "set these to Local"},
	"service.hairpin":                {message: "a pod reaches itself through its Service always"},
	"service.hairpin.externalips":    {message: "a pod reaches itself through its Service always"},
	"service.skiplbips":              {message: "has no counterpart"},
	"service.advertise.clusterip":    {message: "is serviceClusterIPs of BGPConfiguration default, for all Services", action: bgpGuide},
	"service.advertise.externalip":   {message: "is serviceExternalIPs of BGPConfiguration default, for all Services", action: bgpGuide},
	"service.advertise.loadbalancer": {message: "is serviceLoadBalancerIPs of BGPConfiguration default, for all Services", action: bgpGuide},
}

type planner struct {
	*Cluster
	*plan.Plan
	set map[string]string // flags, by name
}

// flag is the value of a flag; otherwise its default.
func (p *planner) flag(name, otherwise string) string {
	if v, ok := p.set[name]; ok {
		return v
	}
	return otherwise
}

// New makes a plan.
func New(c *Cluster) *plan.Plan {
	p := &planner{Cluster: c, Plan: &plan.Plan{Plugin: Name}, set: map[string]string{}}
	if c.Daemon == nil {
		p.Stop("DaemonSet "+Name, "", "", "is not there: kube-router does not run here, or is kept by another program", "")
	} else {
		p.daemon()
		p.objects()
	}
	for i := range c.Common.Nodes {
		p.annotated("Node "+c.Common.Nodes[i].Name, c.Common.Nodes[i].Annotations)
	}
	for i := range c.Services {
		p.annotated("Service "+c.Services[i].Namespace+"/"+c.Services[i].Name, c.Services[i].Annotations)
	}
	if p.flag("run-firewall", "true") != "true" {
		p.InForce(p.Plan)
	}
	p.AddNodes(p.Plan, networks)
	p.Sort()
	return p.Plan
}

// networks are those that pods of a node have addresses of: its annotation wins.
func networks(n *corev1.Node) []string {
	for _, name := range []string{"pod-cidrs", "pod-cidr"} {
		if v := n.Annotations[prefix+name]; v != "" {
			return strings.Split(v, ",")
		}
	}
	return plan.PodCIDRs(n)
}

func (p *planner) daemon() {
	object := "DaemonSet " + p.Daemon.Namespace + "/" + p.Daemon.Name
	for _, c := range p.Daemon.Spec.Template.Spec.Containers {
		if c.Name != Name {
			continue
		}
		p.Version = plan.Tag(c.Image)
		for _, arg := range append(slices.Clone(c.Command), c.Args...) {
			name, value, has := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if !strings.HasPrefix(arg, "--") {
				continue
			}
			if !has {
				value = "true"
			}
			p.set[name] = value
			if what, ok := flags[name]; ok && value != what.unless {
				p.say(object, "--"+name, value, what)
			}
		}
	}
	if v := p.flag("run-service-proxy", "true"); v == "true" && p.set["run-service-proxy"] == "" {
		p.say(object, "--run-service-proxy", v, flags["run-service-proxy"])
	}
}

func (p *planner) say(object, field, value string, what counterpart) {
	if strings.Contains(field, "password") {
		value = "" // nobody's terminal has to show it
	}
	if what.stops {
		p.Stop(object, field, value, what.message, what.action)
	} else {
		p.Differs(object, field, value, what.message, what.action)
	}
}

func (p *planner) annotated(object string, all map[string]string) {
	var names []string
	for name := range all {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		what, ok := annotations[strings.TrimPrefix(name, prefix)]
		if !ok {
			what = counterpart{message: "has no effect with Weir"}
		}
		p.say(object, "metadata.annotations["+name+"]", all[name], what)
	}
}

// objects makes a pool of each network that holds the nodes' pod CIDRs.
func (p *planner) objects() {
	var cidrs []netip.Prefix
	for i := range p.Common.Nodes {
		for _, text := range networks(&p.Common.Nodes[i]) {
			c, err := netip.ParsePrefix(strings.TrimSpace(text))
			if err != nil {
				p.Stop("Node "+p.Common.Nodes[i].Name, "spec.podCIDR", text, "cannot be read: "+err.Error(), "correct it")
				continue
			}
			cidrs = append(cidrs, c.Masked())
		}
	}
	mode := "Never"
	if p.flag("enable-overlay", "true") == "true" {
		mode = "CrossSubnet"
		if p.flag("overlay-type", "subnet") == "full" {
			mode = "Always"
		}
	}
	p.Objects = append(p.Objects, plan.Object("projectcalico.org/v3", "FelixConfiguration", "default", map[string]any{
		"ipv6Support": p.flag("enable-ipv6", "false") == "true"}))
	for i, c := range plan.Covers(cidrs) {
		name := "default"
		if i > 0 || c.Addr().Is6() {
			name = "default-" + strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(c.String())
		}
		p.Objects = append(p.Objects, plan.Object("projectcalico.org/v3", "IPPool", name, map[string]any{"cidr": c.String(), "vxlanMode": mode, "ipipMode": "Never",
			"natOutgoing": p.flag("enable-pod-egress", "true") == "true", "nodeSelector": "all()"}))
	}
}
