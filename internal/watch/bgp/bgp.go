// SPDX-License-Identifier: Apache-2.0

// Package bgp converts what the cluster's objects say about BGP into the model's values: the kinds
// BGPConfiguration, BGPPeer and BGPFilter of projectcalico.org/v3, and the annotations of Nodes.
// What cannot be read opens no session and lets no route through: a BGPPeer whose password is not
// named is left out, a rule of a BGPFilter rejects. Fields that are stored and not in force are
// reported, so that nobody relies on them.
package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch/parse"
)

// Peer is the published type of BGPPeer with the fields of newer servers that Weir acts on.
type Peer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PeerSpec `json:"spec,omitempty"`
}

// PeerSpec is the spec of a BGPPeer.
type PeerSpec struct {
	v3.BGPPeerSpec       `json:",inline"`
	KeepaliveTime        *metav1.Duration `json:"keepaliveTime,omitempty"`
	FailureDetectionMode string           `json:"failureDetectionMode,omitempty"`
	RestartMode          string           `json:"restartMode,omitempty"`
}

// notYet reports a field that is stored and not in force.
func notYet(f *parse.Finding, set bool, field, value string) {
	if set {
		f.Add("spec."+field, value, "is not in force yet: the rest of the object is", "remove it")
	}
}

// ConvertConfiguration converts a BGPConfiguration: "default" is of the cluster, "node.<name>"
// of one node.
func ConvertConfiguration(c *v3.BGPConfiguration) (*model.BGPConfig, []weirv1.Problem) {
	f := parse.NewFinding("BGPConfiguration", c)
	s := &c.Spec
	ofNode := strings.HasPrefix(c.Name, "node.")
	if c.Name != "default" && !ofNode {
		f.Add("metadata.name", c.Name, "is neither default nor node.<name>: nothing of the object is in force", "name it so")
		return nil, f.List
	}
	out := &model.BGPConfig{Name: c.Name, ListenPort: s.ListenPort}
	cluster := func(set bool, field, value string) bool {
		if set && ofNode {
			f.Add("spec."+field, value, "counts in BGPConfiguration default alone; it is ignored", "write it there")
		}
		return set && !ofNode
	}
	if cluster(s.ASNumber != nil, "asNumber", fmt.Sprint(s.ASNumber)) {
		out.ASN = uint32(*s.ASNumber)
	}
	if cluster(s.NodeToNodeMeshEnabled != nil, "nodeToNodeMeshEnabled", "") {
		out.MeshDisabled = !*s.NodeToNodeMeshEnabled
	}
	if cluster(s.NodeMeshPassword != nil, "nodeMeshPassword", "") {
		out.MeshPassword = secretKey(f, "spec.nodeMeshPassword", s.NodeMeshPassword)
	}
	if cluster(s.NodeMeshMaxRestartTime != nil, "nodeMeshMaxRestartTime", "") {
		out.MeshRestart = seconds(f, "spec.nodeMeshMaxRestartTime", s.NodeMeshMaxRestartTime, maxRestart)
	}
	if s.BindMode != nil {
		switch *s.BindMode {
		case v3.BindModeNone, v3.BindModeNodeIP:
			out.BindMode = string(*s.BindMode)
		default:
			f.Add("spec.bindMode", string(*s.BindMode), "is neither None nor NodeIP; None is in force", "correct it")
		}
	}
	for _, of := range []struct {
		field string
		n     int
		cidr  func(int) string
		into  *[]netip.Prefix
	}{
		{"serviceClusterIPs", len(s.ServiceClusterIPs), func(i int) string { return s.ServiceClusterIPs[i].CIDR }, &out.ClusterIPs},
		{"serviceExternalIPs", len(s.ServiceExternalIPs), func(i int) string { return s.ServiceExternalIPs[i].CIDR }, &out.ExternalIPs},
		{"serviceLoadBalancerIPs", len(s.ServiceLoadBalancerIPs), func(i int) string { return s.ServiceLoadBalancerIPs[i].CIDR }, &out.BalancerIPs},
	} {
		if cluster(of.n > 0, of.field, "") {
			*of.into = ranges(f, of.field, of.n, of.cidr)
		}
	}
	// The API server fills in Enabled, in objects of one node, too.
	if a := s.ServiceLoadBalancerAggregation; a != nil && *a != v3.ServiceLoadBalancerAggregationEnabled && cluster(true, "serviceLoadBalancerAggregation", string(*a)) {
		if out.BalancersSingly = *a == v3.ServiceLoadBalancerAggregationDisabled; !out.BalancersSingly {
			f.Add("spec.serviceLoadBalancerAggregation", string(*a), "is neither Enabled nor Disabled; Enabled is in force", "correct it")
		}
	}
	communities(f, s, out)
	notYet(f, len(s.IgnoredInterfaces) > 0, "ignoredInterfaces", "")
	notYet(f, s.LocalWorkloadPeeringIPV4 != "", "localWorkloadPeeringIPV4", s.LocalWorkloadPeeringIPV4)
	notYet(f, s.LocalWorkloadPeeringIPV6 != "", "localWorkloadPeeringIPV6", s.LocalWorkloadPeeringIPV6)
	notYet(f, s.LogSeverityScreen != "" && !strings.EqualFold(s.LogSeverityScreen, "info"), "logSeverityScreen", s.LogSeverityScreen)
	return out, f.List
}

// ranges reads those of Services' addresses.
func ranges(f *parse.Finding, field string, n int, cidr func(int) string) []netip.Prefix {
	var out []netip.Prefix
	for i := range n {
		p, err := parse.Prefix(cidr(i), false)
		if err == nil && p.Bits() == 0 {
			err = fmt.Errorf("is every address")
		}
		if err != nil {
			f.Add(fmt.Sprintf("spec.%s[%d].cidr", field, i), cidr(i), err.Error()+"; nothing is advertised by it", "correct it")
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// communities reads names of communities, and what routes get. Whether a name is one is seen with
// the object of the cluster.
func communities(f *parse.Finding, s *v3.BGPConfigurationSpec, out *model.BGPConfig) {
	for i, c := range s.Communities {
		at := fmt.Sprintf("spec.communities[%d]", i)
		switch {
		case c.Name == "":
			f.Add(at+".name", "", "is missing; the community is not known", "give one")
		case !isCommunity(c.Value):
			f.Add(at+".value", c.Value, notCommunity+"; the community is not known", "correct it")
		default:
			if out.Communities == nil {
				out.Communities = map[string]string{}
			}
			out.Communities[c.Name] = c.Value
		}
	}
	for i, a := range s.PrefixAdvertisements {
		at := fmt.Sprintf("spec.prefixAdvertisements[%d]", i)
		p, err := parse.Prefix(a.CIDR, false)
		if err != nil {
			f.Add(at+".cidr", a.CIDR, err.Error()+"; nothing gets these communities", "correct it")
			continue
		}
		tag := model.BGPTag{CIDR: p}
		for k, c := range a.Communities {
			if strings.Contains(c, ":") && !isCommunity(c) || c == "" {
				f.Add(fmt.Sprintf("%s.communities[%d]", at, k), c, notCommunity+", nor a name; no route gets it", "correct it")
				continue
			}
			tag.Communities = append(tag.Communities, c)
		}
		out.Tagged = append(out.Tagged, tag)
	}
}

// Bounds of times, in seconds: what fits into the messages of BGP (RFC 4724, section 3; RFC 9494,
// section 3.1; RFC 4271, section 4.2).
const (
	maxRestart   = 4095
	maxLongLived = 1<<24 - 1
	maxKeepalive = 65535 / 3

	defaultLongLived = 3600
)

// ConvertPeer converts a BGPPeer. It returns nil for one that names nobody.
func ConvertPeer(p *Peer) (*model.BGPPeer, []weirv1.Problem) {
	f := parse.NewFinding("BGPPeer", p)
	s := &p.Spec
	out := &model.BGPPeer{Name: p.Name, Node: s.Node, NodeSelector: s.NodeSelector, ASN: uint32(s.ASNumber), PeerSelector: s.PeerSelector}
	refuse := func(field, value, message, action string) (*model.BGPPeer, []weirv1.Problem) {
		f.Add("spec."+field, value, message+"; no session is made by this object", action)
		return nil, f.List
	}
	switch {
	case s.LocalWorkloadSelector != "":
		return refuse("localWorkloadSelector", s.LocalWorkloadSelector, "is not in force yet", "remove the object")
	case s.Node != "" && s.NodeSelector != "":
		return refuse("nodeSelector", s.NodeSelector, "and node exclude each other", "remove one of them")
	case s.PeerSelector != "" && (s.PeerIP != "" || s.ASNumber != 0):
		return refuse("peerSelector", s.PeerSelector, "excludes peerIP and asNumber, which the nodes say", "remove one of them")
	case s.PeerSelector == "" && s.PeerIP == "":
		return refuse("peerIP", "", "is empty, and so is peerSelector", "give one of them")
	case s.PeerSelector == "" && s.ASNumber == 0:
		return refuse("asNumber", "", "is missing", "give the AS number of the peer")
	}
	for field, text := range map[string]string{"nodeSelector": s.NodeSelector, "peerSelector": s.PeerSelector} {
		if text == "" {
			continue
		}
		if _, err := selector.Parse(text); err != nil {
			return refuse(field, text, err.Error(), "correct it")
		}
	}
	if s.PeerIP != "" {
		a, port, err := parsePeer(s.PeerIP)
		if err != nil {
			return refuse("peerIP", s.PeerIP, err.Error(), "give the address of a router, with a port as 192.0.2.1:179 or [2001:db8::1]:179")
		}
		out.Addr, out.Port = a, port
	}
	if s.LocalASNumber != nil {
		out.LocalASN = uint32(*s.LocalASNumber)
	}
	out.Password = secretKey(f, "spec.password", s.Password)
	if s.Password != nil && out.Password == (model.SecretKey{}) {
		return nil, f.List // without it a session would be open to everybody
	}
	switch s.RestartMode {
	case "LongLivedGracefulRestart":
		out.LongLived = cmp.Or(seconds(f, "spec.maxRestartTime", s.MaxRestartTime, maxLongLived), defaultLongLived)
	default:
		f.Add("spec.restartMode", s.RestartMode, "is neither GracefulRestart nor LongLivedGracefulRestart; GracefulRestart is in force", "correct it")
		fallthrough
	case "", "GracefulRestart":
		out.Restart = seconds(f, "spec.maxRestartTime", s.MaxRestartTime, maxRestart)
	}
	out.Keepalive = seconds(f, "spec.keepaliveTime", s.KeepaliveTime, maxKeepalive)
	if s.TTLSecurity != nil {
		out.TTLHops = *s.TTLSecurity
	}
	switch s.SourceAddress {
	case "", v3.SourceAddressUseNodeIP:
	case v3.SourceAddressNone:
		out.AnySource = true
	default:
		f.Add("spec.sourceAddress", string(s.SourceAddress), "is neither UseNodeIP nor None; UseNodeIP is in force", "correct it")
	}
	if n := s.NumAllowedLocalASNumbers; n != nil {
		if *n < 0 || *n > 255 {
			f.Add("spec.numAllowedLocalASNumbers", strconv.Itoa(int(*n)), "is not within 0 and 255; 0 is in force", "correct it")
		} else {
			out.AllowedAS = uint8(*n)
		}
	}
	switch s.FailureDetectionMode {
	case "", "None":
	case "BFDIfDirectlyConnected":
		out.BFD = true
	default:
		f.Add("spec.failureDetectionMode", s.FailureDetectionMode, "is neither None nor BFDIfDirectlyConnected; None is in force", "correct it")
	}
	if s.ReversePeering != nil {
		out.Manual = *s.ReversePeering == v3.ReversePeeringManual
	}
	out.NextHop = nextHop(f, s)
	out.Via = reachableBy(f, s.ReachableBy, out.Addr)
	out.Filters = s.Filters
	return out, f.List
}

// nextHop reads what the next hop is of routes that are sent to a peer.
func nextHop(f *parse.Finding, s *PeerSpec) string {
	if s.NextHopMode == nil {
		if s.KeepOriginalNextHop {
			return string(v3.NextHopModeKeep)
		}
		return ""
	}
	switch mode := string(*s.NextHopMode); mode {
	case string(v3.NextHopModeSelf), string(v3.NextHopModeKeep):
		return mode
	case "", string(v3.NextHopModeAuto):
	default:
		f.Add("spec.nextHopMode", mode, "is none of Auto, Self, Keep; Auto is in force", "correct it")
	}
	return ""
}

// reachableBy reads by which router a peer is reached, which has the address peer; invalid = it
// does not say, or says what is reported.
func reachableBy(f *parse.Finding, text string, peer netip.Addr) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	bad := func(why, action string) netip.Addr {
		f.Add("spec.reachableBy", text, why+"; no route to the peer is made by it", action)
		return netip.Addr{}
	}
	a, _, err := parsePeer(text)
	switch {
	case !peer.IsValid():
		return bad("needs a peerIP", "give one, or remove it")
	case err != nil || a.String() != text:
		return bad("is no address of a router", "give one of the peer's family")
	case a.Is4() != peer.Is4():
		return bad("is not of the peer's family", "give an address that is")
	case a == peer:
		return bad("is the peer itself", "remove it")
	}
	return a
}

// parsePeer reads an address with or without a port.
func parsePeer(text string) (netip.Addr, uint16, error) {
	a, err := parse.Addr(strings.Trim(text, "[]"))
	port := uint16(0)
	if err != nil {
		var ap netip.AddrPort
		if ap, err = netip.ParseAddrPort(text); err != nil {
			return netip.Addr{}, 0, fmt.Errorf("is no address with or without a port")
		}
		if a, port = ap.Addr().Unmap(), ap.Port(); port == 0 {
			return netip.Addr{}, 0, fmt.Errorf("has port 0")
		}
	}
	if a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Zone() != "" || a.Is6() && a.IsLinkLocalUnicast() {
		return netip.Addr{}, 0, fmt.Errorf("is no address at which a router is")
	}
	return a, port, nil
}

// secretKey reads whose password it is.
func secretKey(f *parse.Finding, field string, p *v3.BGPPassword) model.SecretKey {
	if p == nil {
		return model.SecretKey{}
	}
	ref := p.SecretKeyRef
	if ref == nil {
		ref = &corev1.SecretKeySelector{}
	}
	if ref.Name == "" || ref.Key == "" {
		f.Add(field+".secretKeyRef", ref.Name+"/"+ref.Key, "names no key of a Secret; no session is made that would need the password", "give name and key")
		return model.SecretKey{}
	}
	return model.SecretKey{Name: ref.Name, Key: ref.Key}
}

// seconds reads a time; 0 = it does not say, or says what is reported.
func seconds(f *parse.Finding, field string, d *metav1.Duration, most uint32) uint32 {
	if d == nil {
		return 0
	}
	if n := d.Round(time.Second) / time.Second; n >= 1 && n <= time.Duration(most) {
		return uint32(n)
	}
	f.Add(field, d.Duration.String(), fmt.Sprintf("is not within 1 and %d seconds; the default is in force", most), "correct it")
	return 0
}

// ReadNode reads what a Node says about BGP.
func ReadNode(f *parse.Finding, annotations map[string]string, out *model.Node) {
	if text := annotations[model.AnnotationASN]; text != "" {
		asn, err := parseASN(text)
		if err != nil {
			f.Add("metadata.annotations["+model.AnnotationASN+"]", text, "is no AS number; the cluster's is in force", "correct it")
		}
		out.ASN = asn
	}
	if text := annotations[model.AnnotationClusterID]; text != "" {
		id, err := netip.ParseAddr(text)
		if err != nil || !id.Is4() {
			f.Add("metadata.annotations["+model.AnnotationClusterID+"]", text, "is not written as an IPv4 address; the node reflects no routes", "correct it")
			return
		}
		out.ClusterID = id
	}
}

// parseASN reads an AS number, plain or as two halves ("64.512", RFC 5396).
func parseASN(text string) (uint32, error) {
	if high, low, dotted := strings.Cut(text, "."); dotted {
		h, err1 := strconv.ParseUint(high, 10, 16)
		l, err2 := strconv.ParseUint(low, 10, 16)
		if err1 != nil || err2 != nil {
			return 0, fmt.Errorf("%q is no AS number", text)
		}
		return uint32(h<<16 | l), nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}
