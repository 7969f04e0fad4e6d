// SPDX-License-Identifier: Apache-2.0

package watch

import (
	networkingv1 "k8s.io/api/networking/v1"

	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// decode turns an object of the dynamic client into its type.
func decode[T any](u *unstructured.Unstructured) (*T, error) {
	var v T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	if c, is := any(&v).(*ClusterPolicy); is {
		c.Unknown = unknownFields(u)
	}
	return &v, nil
}

// ConvertPool converts an IPPool. It returns nil when the pool's CIDR cannot be read. A blockSize
// that does not fit the pool, an overlap and a bad nodeSelector are found by internal/ipam.
func ConvertPool(p *v3.IPPool) (*model.Pool, []weirv1.Problem) {
	f := newFinding("IPPool", p)
	cidr, err := parse.Prefix(p.Spec.CIDR, true)
	if err != nil {
		f.Add("spec.cidr", p.Spec.CIDR, err.Error()+"; the pool is not used", "correct it")
		return nil, f.List
	}
	out := &model.Pool{
		Name: p.Name, CIDR: cidr, VXLAN: f.encap("spec.vxlanMode", string(p.Spec.VXLANMode)), IPIP: f.encap("spec.ipipMode", string(p.Spec.IPIPMode)), NATOutgoing: p.Spec.NATOutgoing, Disabled: p.Spec.Disabled,
		BlockBits: p.Spec.BlockSize, NodeSelector: p.Spec.NodeSelector,
		Workload:          len(p.Spec.AllowedUses) == 0 || slices.Contains(p.Spec.AllowedUses, v3.IPPoolAllowedUseWorkload),
		LoadBalancer:      slices.Contains(p.Spec.AllowedUses, v3.IPPoolAllowedUseLoadBalancer),
		NamespaceSelector: p.Spec.NamespaceSelector, NoBGPExport: p.Spec.DisableBGPExport,
	}
	if p.DeletionTimestamp != nil {
		out.Deleted = p.DeletionTimestamp.Unix()
	}
	switch {
	case !out.IPIP.Encapsulates():
	case cidr.Addr().Is6():
		f.Add("spec.ipipMode", string(p.Spec.IPIPMode), "is in a pool of IPv6, and IP in IP carries IPv4 alone; Never is in force", "set ipipMode: Never, and vxlanMode: Always or CrossSubnet where nodes are in several subnets")
		out.IPIP = model.EncapNever
	case out.VXLAN.Encapsulates():
		f.Add("spec.ipipMode", string(p.Spec.IPIPMode), "is in a pool that has a vxlanMode, too; VXLAN is in force, and no IP in IP", "set one of both to Never")
		out.IPIP = model.EncapNever
	}
	if out.BlockBits == 0 {
		out.BlockBits = 26
		if cidr.Addr().Is6() {
			out.BlockBits = 122
		}
		out.BlockBits = max(out.BlockBits, cidr.Bits())
	}
	if p.Spec.AssignmentMode != nil {
		switch *p.Spec.AssignmentMode {
		case v3.Automatic, "":
		case v3.Manual:
			out.Manual = true
		default:
			f.Add("spec.assignmentMode", string(*p.Spec.AssignmentMode),
				"is neither Automatic nor Manual; the pool gives addresses by annotation only", "correct it")
			out.Manual = true
		}
	}
	for i, use := range p.Spec.AllowedUses {
		switch use {
		case v3.IPPoolAllowedUseWorkload, v3.IPPoolAllowedUseTunnel, v3.IPPoolAllowedUseLoadBalancer:
		default:
			f.Add(fmt.Sprintf("spec.allowedUses[%d]", i), string(use), "is none of Workload, Tunnel, LoadBalancer; it is ignored", "correct it")
		}
	}
	if slices.Contains(p.Spec.AllowedUses, v3.IPPoolAllowedUseTunnel) && !out.Workload {
		f.Add("spec.allowedUses", string(v3.IPPoolAllowedUseTunnel), "has no effect: tunnels have the addresses of their nodes, and take none of a pool", "remove it")
	}
	if s := p.Spec.NodeSelector; s != "" && s != "all()" && out.LoadBalancer && !out.Workload {
		f.Add("spec.nodeSelector", s, "has no effect on the addresses of load balancers", "remove it")
	}
	return out, f.List
}

// encap reads vxlanMode or ipipMode, whose values are the same.
func (f *finding) encap(field, mode string) model.EncapMode {
	switch mode {
	case string(v3.VXLANModeAlways):
		return model.EncapAlways
	case string(v3.VXLANModeCrossSubnet):
		return model.EncapCrossSubnet
	case string(v3.VXLANModeNever), "":
		return model.EncapNever
	}
	f.Add(field, mode, "is none of Never, Always, CrossSubnet; Never is in force", "correct it")
	return model.EncapNever
}

// ConvertReservation converts an IPReservation. What cannot be read is left out and reported.
func ConvertReservation(r *v3.IPReservation) (*Reservation, []weirv1.Problem) {
	f := newFinding("IPReservation", r)
	out := &Reservation{Name: r.Name}
	for i, text := range r.Spec.ReservedCIDRs {
		cidr, err := parse.Prefix(text, false)
		if err != nil {
			f.Add(fmt.Sprintf("spec.reservedCIDRs[%d]", i), text, err.Error()+"; nothing is reserved by it", "correct it")
			continue
		}
		out.CIDRs = append(out.CIDRs, cidr)
	}
	return out, f.List
}

// ConvertServiceCIDR converts a ServiceCIDR.
func ConvertServiceCIDR(r *networkingv1.ServiceCIDR) (*ServiceCIDR, []weirv1.Problem) {
	f := newFinding("ServiceCIDR", r)
	out := &ServiceCIDR{Name: r.Name}
	for i, text := range r.Spec.CIDRs {
		cidr, err := parse.Prefix(text, false)
		if err != nil {
			f.Add(fmt.Sprintf("spec.cidrs[%d]", i), text, err.Error()+"; it is ignored", "correct it")
			continue
		}
		out.CIDRs = append(out.CIDRs, cidr)
	}
	return out, f.List
}

// ConvertIPAMConfiguration converts an IPAMConfiguration; only "default" counts. Weir never lends
// addresses of one node's block to another, so strictAffinity is always in force.
func ConvertIPAMConfiguration(c *parse.IPAMConfiguration) (*IPAMConfig, []weirv1.Problem) {
	f := newFinding("IPAMConfiguration", c)
	out := &IPAMConfig{StrictAffinity: true, MaxBlocks: int(c.Spec.MaxBlocksPerHost), VMAddresses: c.Spec.KubeVirtVMAddressPersistence == parse.VMAddressEnabled}
	if c.Spec.MaxBlocksPerHost < 0 {
		f.Add("spec.maxBlocksPerHost", strconv.Itoa(int(c.Spec.MaxBlocksPerHost)), "is negative; there is no limit", "correct it")
		out.MaxBlocks = 0
	}
	return out, f.List
}

// ConvertBlock converts an IPAMBlock. It returns nil when the block cannot be read, or is not named
// after its CIDR: its name is what makes it unique.
func ConvertBlock(b *weirv1.IPAMBlock) (*model.Block, []weirv1.Problem) {
	f := newFinding("IPAMBlock", b)
	cidr, err := parse.Prefix(b.Spec.CIDR, true)
	if err != nil {
		f.Add("spec.cidr", b.Spec.CIDR, err.Error()+"; the block is not used", "delete it with `weir ipam release`")
		return nil, f.List
	}
	if want := weirv1.BlockName(cidr); b.Name != want {
		f.Add("metadata.name", b.Name, "must be "+want+" for this cidr; the block is not used", "delete it")
		return nil, f.List
	}
	if b.Spec.Node == "" {
		f.Add("spec.node", "", "is empty; the block is not used", "delete it")
		return nil, f.List
	}
	return &model.Block{CIDR: cidr, Node: b.Spec.Node, Created: created(b), UID: string(b.UID), VM: convertBlockVM(b.Spec.VirtualMachine)}, nil
}

func convertBlockVM(v *weirv1.BlockVirtualMachine) *model.BlockVM {
	if v == nil {
		return nil
	}
	namespace, name, _ := strings.Cut(v.Name, "/")
	out := &model.BlockVM{Name: model.Name{Namespace: namespace, Name: name}, Pod: v.Pod}
	if hw, err := net.ParseMAC(v.MAC); err == nil && len(hw) == len(out.MAC) {
		copy(out.MAC[:], hw)
	}
	if v.Target != nil {
		out.TargetNode, out.TargetPod = v.Target.Node, v.Target.Pod
	}
	return out
}

// Published is what the agent of a node says about its link.
type Published struct {
	LinkAddress [6]byte
	Subnets     []netip.Prefix
	WireGuard   model.WireGuardKeys
	// WireGuardNext are the keys that the node is about to have.
	WireGuardNext model.WireGuardKeys
	// NoIPIP: the node cannot take IP in IP.
	NoIPIP bool
	// Gateways: the node leads pods out by the egress gateways on it.
	Gateways bool
}

// ConvertNodeStatus converts the part of a NodeStatus that other nodes use.
func ConvertNodeStatus(s *weirv1.NodeStatus) (*Published, []weirv1.Problem) {
	f := newFinding("NodeStatus", s)
	out := &Published{NoIPIP: s.Status.NoIPIP, Gateways: s.Status.EgressGateways != nil}
	if text := s.Status.LinkAddress; text != "" {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			f.Add("status.linkAddress", text, "is not a unicast MAC address; the node is reached through the kernel's neighbour table",
				"restart weir-node on this node")
		} else {
			out.LinkAddress = [6]byte(mac)
		}
	}
	for i, text := range s.Status.Subnets {
		if i == maxNodeSubnets {
			f.Add("status.subnets", fmt.Sprintf("%d more", len(s.Status.Subnets)-i), fmt.Sprintf("are beyond the first %d; they are left out", maxNodeSubnets),
				"see to which interfaces bpfDataIfacePattern applies on this node")
			break
		}
		p, err := parse.Prefix(text, false)
		if err != nil || p.Bits() == 0 {
			f.Add(fmt.Sprintf("status.subnets[%d]", i), text, "is not a subnet; it is left out", "restart weir-node on this node")
			continue
		}
		out.Subnets = append(out.Subnets, p)
	}
	slices.SortFunc(out.Subnets, netip.Prefix.Compare)
	if w := s.Status.WireGuard; w != nil {
		for _, k := range []struct {
			field, text string
			six         bool
			into        *model.WireGuardKeys
		}{{"publicKey", w.PublicKey, false, &out.WireGuard}, {"publicKeyIPv6", w.PublicKeyIPv6, true, &out.WireGuard},
			{"nextPublicKey", w.NextPublicKey, false, &out.WireGuardNext}, {"nextPublicKeyIPv6", w.NextPublicKeyIPv6, true, &out.WireGuardNext}} {
			if k.text == "" {
				continue
			}
			key, err := model.ParseWireGuardKey(k.text)
			if err != nil {
				f.Add("status.wireGuard."+k.field, k.text, err.Error()+"; the key that the node had before counts, if any", "restart weir-node on this node")
				continue
			}
			*k.into = k.into.With(k.six, key)
		}
	}
	return out, f.List
}

// AddNodeStatus returns the node with what was published about it; published may be nil.
func AddNodeStatus(n *model.Node, published *Published) *model.Node {
	if n == nil || published == nil {
		return n
	}
	out := *n
	out.LinkAddress, out.Subnets = published.LinkAddress, published.Subnets
	out.WireGuard, out.WireGuardNext, out.NoIPIP, out.Gateways = published.WireGuard, published.WireGuardNext, published.NoIPIP, published.Gateways
	return &out
}

// ConvertFelixConfiguration takes a FelixConfiguration's spec as it was written; internal/config
// reads it.
func ConvertFelixConfiguration(u *unstructured.Unstructured) (*FelixConfig, []weirv1.Problem) {
	spec, ok, err := unstructured.NestedMap(u.Object, "spec")
	if err != nil || !ok {
		spec = map[string]any{}
	}
	return &FelixConfig{Name: u.GetName(), Spec: spec}, nil
}

// ConvertFelixConfigurationV3 is ConvertFelixConfiguration for the published type, for tests and
// tools.
func ConvertFelixConfigurationV3(c *v3.FelixConfiguration) (*FelixConfig, error) {
	raw, err := json.Marshal(c.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode FelixConfiguration %s: %w", c.Name, err)
	}
	out := &FelixConfig{Name: c.Name, Spec: map[string]any{}}
	if err := json.Unmarshal(raw, &out.Spec); err != nil {
		return nil, fmt.Errorf("decode FelixConfiguration %s: %w", c.Name, err)
	}
	maps.DeleteFunc(out.Spec, func(_ string, v any) bool { return v == nil || v == "" })
	return out, nil
}
