// SPDX-License-Identifier: Apache-2.0

// Package flannel says what a migration from flannel to Weir means, from the DaemonSet and
// ConfigMap of flannel's manifest, Nodes, Pods and NetworkPolicies. Weir gives pods addresses of
// the same network, each node those of its own pod CIDR, and speaks flannel's VXLAN, so that pods
// of nodes with either reach each other. It is pure, and changes nothing.
package flannel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
)

// Namespaces are those of flannel's manifest and of clusters that have it for long.
var Namespaces = []string{"kube-flannel", "kube-system"}

// AppLabel is the label, and its value, of flannel's pods in all of its manifests.
const AppLabel, App = "app", "flannel"

// The names of objects that take the place of flannel's settings.
const (
	pool        = "flannel"
	reservation = "flannel-nodes"
	configMap   = "kube-flannel-cfg"
)

// prefix begins the annotations that flannel writes to Nodes.
const prefix = "flannel.alpha.coreos.com/"

// Cluster is what a plan is made from.
type Cluster struct {
	plan.Common
	// Daemon is flannel's DaemonSet, nil where there is none, and Config its ConfigMap.
	Daemon *appsv1.DaemonSet
	Config *corev1.ConfigMap
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
		switch gk := u.GroupVersionKind().GroupKind().String(); {
		case gk == "DaemonSet.apps" && isFlannel(u):
			c.Daemon, err = plan.As[appsv1.DaemonSet](u)
		case gk == "ConfigMap" && u.GetName() == configMap:
			c.Config, err = plan.As[corev1.ConfigMap](u)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// isFlannel reports whether a DaemonSet is one of flannel's for Linux; older manifests have one for
// each architecture.
func isFlannel(u *unstructured.Unstructured) bool {
	return u.GetLabels()[AppLabel] == App && !strings.Contains(u.GetName(), "windows")
}

// netConf is the network as flannel's ConfigMap has it.
type netConf struct {
	Network        string
	EnableIPv4     *bool
	EnableIPv6     bool
	EnableNFTables bool
	Backend        map[string]any
}

// New makes a plan.
func New(c *Cluster) *plan.Plan {
	p := &planner{Cluster: c, Plan: &plan.Plan{Plugin: App}}
	if p.daemon() && p.config() {
		p.objects()
	}
	if !p.enforces() {
		p.InForce(p.Plan)
	}
	p.AddNodes(p.Plan, plan.PodCIDRs)
	p.Sort()
	return p.Plan
}

type planner struct {
	*Cluster
	*plan.Plan
	network   netip.Prefix
	blockSize int
	port, vni int64
	masq      bool
	mtu       int64
}

func (p *planner) daemon() bool {
	if p.Daemon == nil {
		p.Stop("DaemonSet kube-flannel-ds", "", "", "is not there: flannel does not run here, or is a part of another program (k3s), and cannot be taken off a node by itself", "")
		return false
	}
	object := "DaemonSet " + p.Daemon.Namespace + "/" + p.Daemon.Name
	kube := false
	for _, c := range p.Daemon.Spec.Template.Spec.Containers {
		if c.Name != "kube-flannel" {
			continue
		}
		p.Version = plan.Tag(c.Image)
		for _, arg := range append(slices.Clone(c.Command), c.Args...) {
			flag, value, set := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			on := !set || value == "true"
			switch flag {
			case "kube-subnet-mgr":
				kube = on
			case "ip-masq":
				p.masq = on
			case "kube-annotation-prefix":
				p.Stop(object, "--"+flag, value, "nodes with Weir look for flannel's annotations "+prefix, "")
			}
		}
	}
	if !kube {
		p.Stop(object, "--kube-subnet-mgr", "false", "flannel keeps in etcd which node has which addresses", "")
	}
	return true
}

// enforces reports whether flannel has a container that enforces NetworkPolicies.
func (p *planner) enforces() bool {
	return p.Daemon != nil && slices.ContainsFunc(p.Daemon.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "kube-network-policies" })
}

func (p *planner) config() bool {
	const field = "data.net-conf.json"
	object := "ConfigMap " + configMap
	var conf netConf
	if p.Config == nil {
		p.Stop(object, "", "", "is not there", "")
		return false
	}
	if err := json.Unmarshal([]byte(p.Config.Data["net-conf.json"]), &conf); err != nil {
		p.Stop(object, field, "", "cannot be read: "+err.Error(), "")
		return false
	}
	var err error
	if p.network, err = netip.ParsePrefix(conf.Network); err != nil || !p.network.Addr().Is4() || conf.EnableIPv4 != nil && !*conf.EnableIPv4 {
		p.Stop(object, field+".Network", conf.Network, "is not a network of IPv4, which alone can be changed", "")
		return false
	}
	p.network = p.network.Masked()
	if conf.EnableIPv6 {
		p.Stop(object, field+".EnableIPv6", "true", "only IPv4 can be changed", "")
	}
	if conf.EnableNFTables {
		p.Stop(object, field+".EnableNFTables", "true", "flannel's tables of nftables are not removed", "set it to false")
	}
	p.port, p.vni = 8472, 1
	for _, name := range slices.Sorted(maps.Keys(conf.Backend)) {
		value := conf.Backend[name]
		number, _ := value.(float64)
		switch at := field + ".Backend." + name; {
		case name == "Type" && value != "vxlan":
			p.Stop(object, at, fmt.Sprint(value), "only vxlan can be changed while nodes have either", "change the whole cluster at once: docs/guides/install.md")
		case name == "Type":
		case name == "VNI":
			p.vni = int64(number)
		case name == "Port":
			p.port = int64(number)
		case name == "MTU":
			p.mtu = int64(number)
		case name == "DirectRouting" && value == true:
			p.Stop(object, at, "true", "nodes with Weir send everything through the tunnel, which others would not expect", "set it to false while nodes change")
		case name == "GBP" && value == true:
			p.Stop(object, at, "true", "Weir does not send group policies", "")
		case value == false || name == "Learning":
		default:
			p.Differs(object, at, fmt.Sprint(value), "has no effect with Weir", "")
		}
	}
	if p.vni < 1 || p.vni > 1<<24-1 || p.port < 1 || p.port > 65535 {
		p.Stop(object, field+".Backend", fmt.Sprintf("VNI %d, Port %d", p.vni, p.port), "is no VXLAN", "correct it")
	}
	p.conflist(object)
	return true
}

// conflist looks at the plugins that pods are started with.
func (p *planner) conflist(object string) {
	const field = "data.cni-conf.json"
	var conf struct {
		Plugins []struct {
			Type     string
			Delegate map[string]any
		}
	}
	if err := json.Unmarshal([]byte(p.Config.Data["cni-conf.json"]), &conf); err != nil {
		p.Differs(object, field, "", "cannot be read: "+err.Error(), "")
	}
	for _, plugin := range conf.Plugins {
		switch plugin.Type {
		case "flannel":
			for _, name := range slices.Sorted(maps.Keys(plugin.Delegate)) {
				if !slices.Contains([]string{"hairpinMode", "isDefaultGateway", "forceAddress", "ipMasq"}, name) {
					p.Differs(object, field+".delegate."+name, fmt.Sprint(plugin.Delegate[name]), "has no effect with Weir, which makes no bridge", "")
				}
			}
		case "portmap": // Weir carries host ports itself
		default:
			p.Differs(object, field+".plugins", plugin.Type, "is not called by Weir, whose plugin is the only one of its list", "")
		}
	}
}

// objects makes those of projectcalico.org/v3. Each node has one block, its pod CIDR, so that it
// gives no address of a node that has flannel.
func (p *planner) objects() {
	var reserved []any
	for i := range p.Common.Nodes {
		n := &p.Common.Nodes[i]
		cidr := p.node(n)
		if !cidr.IsValid() {
			continue
		}
		switch {
		case p.blockSize == 0:
			p.blockSize = cidr.Bits()
		case p.blockSize != cidr.Bits():
			p.Stop("Node "+n.Name, "spec.podCIDR", cidr.String(), "has another length than those of other nodes", "")
		}
		// What flannel.1 and the bridge have, while flannel is there.
		reserved = append(reserved, netip.PrefixFrom(cidr.Addr(), 31).String())
	}
	felix := map[string]any{"bpfEnabled": false, "vxlanPort": p.port, "vxlanVNI": p.vni}
	if p.mtu > 0 {
		felix["vxlanMTU"] = p.mtu - 50
	}
	const v3 = "projectcalico.org/v3"
	p.Objects = []*unstructured.Unstructured{
		plan.Object(v3, "FelixConfiguration", "default", felix),
		plan.Object(v3, "IPAMConfiguration", "default", map[string]any{"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": int64(1)}),
		plan.Object(v3, "IPPool", pool, map[string]any{"cidr": p.network.String(), "blockSize": int64(p.blockSize), "vxlanMode": "Always", "ipipMode": "Never",
			"natOutgoing": p.masq, "nodeSelector": "all()"}),
		plan.Object(v3, "IPReservation", reservation, map[string]any{"reservedCIDRs": reserved}),
	}
}

// node looks at a node that is to be changed, and returns its pod CIDR.
func (p *planner) node(n *corev1.Node) netip.Prefix {
	object := "Node " + n.Name
	if n.Labels[corev1.LabelOSStable] == "windows" {
		return netip.Prefix{}
	}
	text := strings.Join(plan.PodCIDRs(n), ",")
	cidr, err := netip.ParsePrefix(text)
	if err != nil || cidr != cidr.Masked() || cidr.Bits() <= p.network.Bits() || cidr.Bits() > 30 || !p.network.Contains(cidr.Addr()) {
		p.Stop(object, "spec.podCIDR", text, "is not a network of flannel's "+p.network.String(), "see whether the node has flannel")
		return netip.Prefix{}
	}
	if v := n.Annotations[prefix+"backend-type"]; v != "vxlan" {
		p.Stop(object, "metadata.annotations["+prefix+"backend-type]", v, "is not vxlan: flannel does not run there, or another way", "see whether its pod is ready on that node")
		return cidr
	}
	if _, err := VTEP(n); err != nil {
		p.Stop(object, "metadata.annotations["+prefix+"backend-data]", n.Annotations[prefix+"backend-data"], err.Error(), "see whether flannel's pod is ready on that node")
	}
	if public, ip := n.Annotations[prefix+"public-ip"], plan.InternalIP(n); public != ip.String() {
		p.Stop(object, "metadata.annotations["+prefix+"public-ip]", public, "flannel knows the node by another address than Weir would, its InternalIP "+ip.String(), "name the interface with --iface")
	}
	return cidr
}

// VTEP is the MAC address of the device by which a node has flannel's VXLAN.
func VTEP(n *corev1.Node) (out [6]byte, err error) {
	var data struct{ VtepMAC string }
	if err := json.Unmarshal([]byte(n.Annotations[prefix+"backend-data"]), &data); err != nil {
		return out, fmt.Errorf("annotation %sbackend-data cannot be read: %w", prefix, err)
	}
	mac, err := net.ParseMAC(data.VtepMAC)
	if err != nil || len(mac) != len(out) || mac[0]&1 != 0 {
		return out, fmt.Errorf("annotation %sbackend-data has no MAC address of a node: %s", prefix, strconv.Quote(data.VtepMAC))
	}
	return [6]byte(mac), nil
}
