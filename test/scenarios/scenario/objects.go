// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
	"github.com/weir-net/weir/internal/watch/bgp"
)

// Host is a machine next to the cluster: kind Host of scenarios.weir.dev, which exists in scenarios
// only.
type Host struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Address string `json:"address"` // with its prefix length
	} `json:"spec"`
}

// Objects are the API objects of a scenario, converted to the model as the agent does.
type Objects struct {
	cluster   *model.Cluster
	published map[string]*watch.Published
	config    map[string]*watch.FelixConfig
	ranges    map[string]*watch.ServiceCIDR
	reserved  map[string]*watch.Reservation
	hosts     map[string]netip.Prefix
	environ   []string       // of the agents
	handOver  bool           // of all nodes
	proxied   string         // the node where a kube-proxy carries Services
	order     map[string]int // of pods, as first seen: their interfaces are numbered by it
}

func newObjects() *Objects {
	return &Objects{
		cluster: model.NewCluster(), published: map[string]*watch.Published{}, config: map[string]*watch.FelixConfig{},
		ranges: map[string]*watch.ServiceCIDR{}, reserved: map[string]*watch.Reservation{}, hosts: map[string]netip.Prefix{}, order: map[string]int{},
	}
}

// Apply adds or replaces the objects of a YAML stream. A field that does not exist, and an object
// that the conversion complains about, are errors: a scenario means what it says.
func (o *Objects) Apply(stream []byte) error {
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if err := o.apply(doc); err != nil {
			return err
		}
	}
}

func (o *Objects) apply(doc []byte) error {
	var head metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return err
	}
	if head.Name == "" {
		return fmt.Errorf("%s without a name", head.Kind)
	}
	name := model.Name{Namespace: head.Namespace, Name: head.Name}
	c := o.cluster
	var err error
	switch head.Kind {
	case "Namespace":
		err = put(doc, c.Namespaces, head.Name, watch.ConvertNamespace)
	case "Pod":
		pods := map[model.Name]*model.Pod{}
		if err = put(doc, pods, name, watch.ConvertPod); err == nil {
			c.Pods.Delete(name)
			for _, p := range pods {
				c.Pods.Put(p)
			}
		}
		o.number(name)
	case "Node":
		err = put(doc, c.Nodes, head.Name, watch.ConvertNode)
	case "NodeStatus":
		err = put(doc, o.published, head.Name, watch.ConvertNodeStatus)
	case "Service":
		err = put(doc, c.Services, name, watch.ConvertService)
	case "EndpointSlice":
		err = put(doc, c.Slices, name, watch.ConvertEndpointSlice)
	case "NetworkPolicy":
		if strings.HasPrefix(head.APIVersion, "projectcalico.org/") {
			err = put(doc, c.Policies, model.PolicyID{Kind: model.KindCalicoNetworkPolicy, Name: name}, watch.ConvertCalicoPolicy)
		} else {
			err = put(doc, c.Policies, model.PolicyID{Kind: model.KindNetworkPolicy, Name: name}, watch.ConvertNetworkPolicy)
		}
	case "GlobalNetworkPolicy":
		err = put(doc, c.Policies, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertGlobalNetworkPolicy)
	case model.KindStagedNetworkPolicy:
		err = put(doc, c.Staged, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertStagedNetworkPolicy)
	case model.KindStagedGlobalNetworkPolicy:
		err = put(doc, c.Staged, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertStagedGlobalNetworkPolicy)
	case model.KindStagedKubernetesNetworkPolicy:
		err = put(doc, c.Staged, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertStagedKubernetesNetworkPolicy)
	case model.KindClusterNetworkPolicy:
		err = put(doc, c.Policies, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertClusterNetworkPolicy)
	case model.KindAdminNetworkPolicy:
		err = put(doc, c.Policies, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertAdminNetworkPolicy)
	case model.KindBaselineAdminNetworkPolicy:
		err = put(doc, c.Policies, model.PolicyID{Kind: head.Kind, Name: name}, watch.ConvertBaselineAdminNetworkPolicy)
	case "Tier":
		err = put(doc, c.Tiers, head.Name, watch.ConvertTier)
	case "HostEndpoint":
		err = put(doc, c.HostEndpoints, head.Name, watch.ConvertHostEndpoint)
	case "NetworkSet":
		err = put(doc, c.NetworkSets, name, watch.ConvertNetworkSet)
	case "GlobalNetworkSet":
		err = put(doc, c.NetworkSets, name, watch.ConvertGlobalNetworkSet)
	case "ServiceAccount":
		err = put(doc, c.ServiceAccounts, name, watch.ConvertServiceAccount)
	case "IPPool":
		err = put(doc, c.Pools, head.Name, watch.ConvertPool)
	case "BGPConfiguration":
		err = put(doc, c.BGPConfigs, head.Name, bgp.ConvertConfiguration)
	case "EgressGatewayPolicy":
		err = put(doc, c.EgressPolicies, head.Name, watch.ConvertEgressPolicy)
	case "IPAMBlock":
		err = o.applyBlock(doc)
	case "ServiceCIDR":
		err = put(doc, o.ranges, head.Name, watch.ConvertServiceCIDR)
	case "IPReservation":
		err = put(doc, o.reserved, head.Name, watch.ConvertReservation)
	case "FelixConfiguration":
		err = put(doc, o.config, head.Name, func(f *v3.FelixConfiguration) (*watch.FelixConfig, []weirv1.Problem) {
			v, convertErr := watch.ConvertFelixConfigurationV3(f)
			err = convertErr
			return v, nil
		})
	case "Host":
		var h Host
		if err = yaml.UnmarshalStrict(doc, &h); err == nil {
			o.hosts[head.Name], err = netip.ParsePrefix(h.Spec.Address)
		}
	default:
		err = errors.New("a kind that scenarios do not know")
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", head.Kind, name, err)
	}
	return nil
}

func put[K comparable, T, V any](doc []byte, into map[K]*V, name K, convert func(*T) (*V, []weirv1.Problem)) error {
	var t T
	if err := yaml.UnmarshalStrict(doc, &t); err != nil {
		return err
	}
	v, problems := convert(&t)
	for _, p := range problems {
		return fmt.Errorf("%s: %s", p.Field, p.Message)
	}
	if v == nil {
		delete(into, name)
		return nil
	}
	into[name] = v
	return nil
}

func (o *Objects) applyBlock(doc []byte) error {
	var b weirv1.IPAMBlock
	if err := yaml.UnmarshalStrict(doc, &b); err != nil {
		return err
	}
	v, problems := watch.ConvertBlock(&b)
	for _, p := range problems {
		return fmt.Errorf("%s: %s", p.Field, p.Message)
	}
	o.cluster.Blocks[v.CIDR] = v
	return nil
}

func (o *Objects) number(pod model.Name) {
	if _, ok := o.order[pod.String()]; !ok {
		o.order[pod.String()] = len(o.order)
	}
}

// Delete removes an object; it is an error when there is none.
func (o *Objects) Delete(kind, name string) error {
	ns, n, ok := strings.Cut(name, "/")
	if !ok {
		ns, n = "", name
	}
	full := model.Name{Namespace: ns, Name: n}
	found := false
	c := o.cluster
	switch kind {
	case "Pod":
		found = c.Pods.Get(full) != nil
		c.Pods.Delete(full)
	case "Service":
		found = remove(c.Services, full)
	case "EndpointSlice":
		found = remove(c.Slices, full)
	case "NetworkPolicy":
		found = remove(c.Policies, model.PolicyID{Kind: model.KindNetworkPolicy, Name: full}) ||
			remove(c.Policies, model.PolicyID{Kind: model.KindCalicoNetworkPolicy, Name: full})
	case model.KindGlobalNetworkPolicy, model.KindClusterNetworkPolicy, model.KindAdminNetworkPolicy, model.KindBaselineAdminNetworkPolicy:
		found = remove(c.Policies, model.PolicyID{Kind: kind, Name: model.Name{Name: n}})
	case model.KindStagedNetworkPolicy, model.KindStagedGlobalNetworkPolicy, model.KindStagedKubernetesNetworkPolicy:
		found = remove(c.Staged, model.PolicyID{Kind: kind, Name: full})
	case "Tier":
		found = remove(c.Tiers, n)
	case "HostEndpoint":
		found = remove(c.HostEndpoints, n)
	case "NetworkSet":
		found = remove(c.NetworkSets, full)
	case "GlobalNetworkSet":
		found = remove(c.NetworkSets, model.Name{Name: n})
	case "Node":
		found = remove(c.Nodes, n)
	case "NodeStatus":
		found = remove(o.published, n)
	case "IPPool":
		found = remove(c.Pools, n)
	case "FelixConfiguration":
		found = remove(o.config, n)
	default:
		return fmt.Errorf("delete %s: a kind that scenarios do not delete", kind)
	}
	if !found {
		return fmt.Errorf("delete %s %s: there is none", kind, name)
	}
	return nil
}

func remove[K comparable, V any](m map[K]V, k K) bool {
	_, ok := m[k]
	delete(m, k)
	return ok
}

// Interfaces of a scenario's nodes.
const (
	Uplink     = 1002
	HostDevice = 1003 // weir0
	TunnelDev  = 1004
	Uplink2    = 1005 // of machines with networks aside
	firstPod   = 1100
)

// Cluster returns what the agent of a node sees. Its local view is made up: an interface for each
// pod that is there, numbered as the pods were first seen in the scenario.
func (o *Objects) Cluster(node string) (*model.Cluster, error) {
	c := *o.cluster
	c.Nodes = make(map[string]*model.Node, len(o.cluster.Nodes))
	for name, n := range o.cluster.Nodes {
		c.Nodes[name] = watch.AddNodeStatus(n, o.published[name])
	}
	own := c.Nodes[node]
	if own == nil {
		return nil, fmt.Errorf("no Node %s", node)
	}
	c.Pods, c.Services, c.Slices = c.Pods.Clone(), maps.Clone(c.Services), maps.Clone(c.Slices)
	c.Staged = maps.Clone(c.Staged)
	c.Policies, c.Blocks, c.Pools = maps.Clone(c.Policies), maps.Clone(c.Blocks), maps.Clone(c.Pools)
	for _, r := range o.ranges {
		c.ServiceCIDRs = append(c.ServiceCIDRs, r.CIDRs...)
	}
	for _, r := range o.reserved {
		c.Reservations = append(c.Reservations, r.CIDRs...)
	}
	settings, err := o.settings(node)
	if err != nil {
		return nil, err
	}
	c.Settings = settings
	c.Local = model.Local{
		HandOver: o.handOver, KubeProxy: o.proxied == node, ProxyRules: o.proxied == node,
		Node: node, HostAddrs: own.Addrs, Subnets: own.Subnets, LinkMTU: 1500,
		Endpoints:  map[netip.Addr]*model.LocalEndpoint{},
		Interfaces: []model.LocalInterface{{Name: "eth0", IfIndex: Uplink, Addrs: own.Addrs}},
	}
	for p := range c.Pods.All() {
		if p.Node != node || p.HostNetwork || p.Finished {
			continue
		}
		for _, a := range p.Addrs {
			c.Local.Endpoints[a] = o.endpoint(p)
		}
	}
	return &c, nil
}

func (o *Objects) endpoint(p *model.Pod) *model.LocalEndpoint {
	i := firstPod + o.order[p.Name.String()]
	return &model.LocalEndpoint{
		Pod: p.Name, Interface: fmt.Sprintf("cali%d", i), IfIndex: i, Addrs: p.Addrs,
		MAC: macOf(p.Addrs[0]), NetnsCookie: uint64(i),
	}
}

// macOf makes a MAC address from an IPv4 one, so that every machine of a scenario has its own.
func macOf(a netip.Addr) [6]byte {
	if a.Is6() {
		b := a.As16()
		return [6]byte{2, 6, b[5], b[7], b[14], b[15]}
	}
	b := a.As4()
	return [6]byte{2, 0, b[0], b[1], b[2], b[3]}
}

// settings are what is in force on a node. A value or a field that is not taken is an error.
func (o *Objects) settings(node string) (model.Settings, error) {
	r := config.New(node, o.environ, nil)
	for name, f := range o.config {
		r.Set(name, f.Spec)
	}
	result := r.Resolve()
	for _, p := range result.Problems {
		return model.Settings{}, fmt.Errorf("%s %s: %s", p.Object, p.Field, p.Message)
	}
	for _, u := range result.Unsupported {
		return model.Settings{}, errors.New(u)
	}
	return result.Settings, nil
}
