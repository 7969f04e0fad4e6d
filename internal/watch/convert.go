// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/bgp"
	"github.com/weir-net/weir/internal/watch/parse"
)

// finding collects the problems of one object, and has the methods that read its fields.
type finding struct {
	parse.Finding
}

func newFinding(kind string, o metav1.Object) *finding {
	return &finding{*parse.NewFinding(kind, o)}
}

// created is when an object was made, in Unix seconds; 0 where it does not say.
func created(o metav1.Object) int64 {
	if t := o.GetCreationTimestamp(); !t.IsZero() {
		return t.Unix()
	}
	return 0
}

// ConvertNamespace converts a Namespace.
func ConvertNamespace(n *corev1.Namespace) (*model.Namespace, []weirv1.Problem) {
	f := newFinding("Namespace", n)
	return &model.Namespace{Name: n.Name, Labels: n.Labels, Egress: f.Egress(n.Annotations), EgressClients: f.EgressClients(n.Annotations),
		SourceGrants:   f.Sources(n.Annotations, model.AnnotationSourceGrants, "pods of the namespace are not allowed to send from it"),
		FloatingGrants: f.Sources(n.Annotations, model.AnnotationFloatingGrants, "pods of the namespace are not allowed to have it")}, f.List
}

// ConvertPod converts a Pod. Addresses that are none are left out and reported.
func ConvertPod(p *corev1.Pod) (*model.Pod, []weirv1.Problem) {
	f := newFinding("Pod", p)
	out := &model.Pod{
		Name: parse.NameOf(p), Labels: p.Labels, Node: p.Spec.NodeName, ServiceAccount: p.Spec.ServiceAccountName,
		HostNetwork: p.Spec.HostNetwork,
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Created:     created(p), UID: string(p.UID), Asked: askedAddrs(p.Annotations),
	}
	if !out.HostNetwork { // its interface is the node's
		out.QoS = f.QoS(p.Annotations)
		out.Egress, out.Gateway = f.Egress(p.Annotations), f.EgressGateway(p)
		out.Sources = f.Sources(p.Annotations, model.AnnotationSources, "the pod does not send from it")
		out.Floating = f.Floating(p.Annotations)
	}
	f.noEffect("Pod", p.Annotations)
	ips := p.Status.PodIPs
	if len(ips) == 0 && p.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	for i, ip := range ips {
		if a, ok := f.unicast(fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP); ok {
			out.Addrs = append(out.Addrs, a)
		}
	}
	for _, group := range []struct {
		field string
		list  []corev1.Container
	}{{"spec.containers", p.Spec.Containers}, {"spec.initContainers", sidecars(p.Spec.InitContainers)}} {
		for i, c := range group.list {
			out.Ports = f.podPorts(out.Ports, fmt.Sprintf("%s[%d]", group.field, i), c.Ports, p.Spec.HostNetwork)
		}
	}
	return out, f.List
}

// Annotations of pods that say which addresses they may have.
const (
	annotationAddrs  = "cni.projectcalico.org/ipAddrs"
	annotationMirror = "kubernetes.io/config.mirror" // written by a kubelet that made the pod itself
)

// askedAddrs returns the addresses that a pod asks for. What cannot be read, its ADD refuses. A pod
// that represents a static one asks for nothing: its node wrote it.
func askedAddrs(annotations map[string]string) []netip.Addr {
	text, ok := annotations[annotationAddrs]
	if _, mirror := annotations[annotationMirror]; mirror || !ok {
		return nil
	}
	var list []string
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	var out []netip.Addr
	for _, s := range list {
		if a, err := parse.Addr(s); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// sidecars returns the init containers that run as long as the pod does (KEP-753).
func sidecars(list []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range list {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}

func (f *finding) podPorts(out []model.PodPort, field string, ports []corev1.ContainerPort, hostNetwork bool) []model.PodPort {
	for i, cp := range ports {
		field := fmt.Sprintf("%s.ports[%d]", field, i)
		proto, ok := f.protocol(field+".protocol", cp.Protocol)
		port, ok2 := f.port(field+".containerPort", cp.ContainerPort)
		if !ok || !ok2 {
			continue
		}
		mp := model.PodPort{Name: cp.Name, Protocol: proto, Port: port}
		// The API server sets hostPort to containerPort in host-network pods: nothing is to be
		// forwarded.
		if cp.HostPort != 0 && !hostNetwork {
			if mp.HostPort, ok = f.port(field+".hostPort", cp.HostPort); !ok {
				continue
			}
			if cp.HostIP != "" && cp.HostIP != "::" { // :: is every address, as for a socket; 0.0.0.0 all of IPv4
				a, err := parse.Addr(cp.HostIP)
				if err != nil {
					f.Add(field+".hostIP", cp.HostIP, "is not an IP address; the host port is not served", "correct it")
					mp.HostPort = 0
				}
				mp.HostIP = a
			}
		}
		out = append(out, mp)
	}
	return out
}

// ConvertNode converts a Node. What its agent published about it is added by AddNodeStatus.
func ConvertNode(n *corev1.Node) (*model.Node, []weirv1.Problem) {
	f := newFinding("Node", n)
	out := &model.Node{Name: n.Name, Labels: n.Labels, Created: created(n), UID: string(n.UID), Leaving: n.DeletionTimestamp != nil || len(leaving(n.Spec.Taints)) > 0,
		Cordoned: n.Spec.Unschedulable}
	for _, c := range n.Status.Conditions {
		out.NotReady = out.NotReady || c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	}
	out.Addrs = f.nodeAddrs(n.Status.Addresses)
	bgp.ReadNode(&f.Finding, n.Annotations, out)
	return out, f.List
}

// What a node may claim: a node, or whoever has its token, writes its status, which may have tens
// of thousands of addresses.
const (
	maxNodeAddrs   = 8  // of each family
	maxNodeSubnets = 32 // of both families together
)

// nodeAddrs returns the addresses of a Node that count, internal ones first: the first maxNodeAddrs
// of each family. What is beyond is one problem.
func (f *finding) nodeAddrs(list []corev1.NodeAddress) []netip.Addr {
	var out []netip.Addr
	var of [2]int // by family
	wrong, beyond := 0, 0
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, na := range list {
			if na.Type != t {
				continue
			}
			if min(of[0], of[1]) == maxNodeAddrs || wrong == maxNodeAddrs {
				beyond++
				continue
			}
			a, ok := f.unicast(fmt.Sprintf("status.addresses[%d].address", i), na.Address)
			family := 0
			if a.Is6() {
				family = 1
			}
			switch {
			case !ok:
				wrong++
			case slices.Contains(out, a):
			case of[family] == maxNodeAddrs:
				beyond++
			default:
				out = append(out, a)
				of[family]++
			}
		}
	}
	if beyond > 0 {
		f.Add("status.addresses", fmt.Sprintf("%d more", beyond), fmt.Sprintf("are beyond the first %d of a family; they are left out", maxNodeAddrs),
			"find out who writes them: a node has few addresses")
	}
	return out
}

// notOurs says whether the labels of a Service or of an EndpointSlice take it from every proxy that
// is not named in them. As for kube-proxy their presence counts, not their value.
func notOurs(labels map[string]string) bool {
	_, other := labels["service.kubernetes.io/service-proxy-name"]
	_, headless := labels[corev1.IsHeadlessService]
	return other || headless
}

// ConvertService converts a Service. It returns nil for those that are not carried: headless by
// address or by label, ExternalName, and those handed to another proxy by label.
func ConvertService(s *corev1.Service) (*model.Service, []weirv1.Problem) {
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.ClusterIP == "" {
		return nil, nil
	}
	if notOurs(s.Labels) {
		return nil, nil
	}
	f := newFinding("Service", s)
	out := &model.Service{
		Name: parse.NameOf(s), Created: created(s), UID: string(s.UID),
		Annotations: s.Annotations, PublishNotReady: s.Spec.PublishNotReadyAddresses,
		ExternalLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal: s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	f.noEffect("Service", s.Annotations)
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{s.Spec.ClusterIP}
	}
	for i, ip := range ips {
		if a, ok := f.unicast(fmt.Sprintf("spec.clusterIPs[%d]", i), ip); ok {
			out.ClusterIPs = append(out.ClusterIPs, a)
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		if a, ok := f.unicast(fmt.Sprintf("spec.externalIPs[%d]", i), ip); ok {
			out.ExternalIPs = append(out.ExternalIPs, a)
		}
	}
	out.LBIPs = f.loadBalancerIPs(s)
	out.ExternalMode = f.externalMode(s.Annotations)
	out.Maglev = f.maglev(s.Annotations)
	out.SourceRanges, out.Restricted = f.sourceRanges(s)
	if s.Spec.HealthCheckNodePort != 0 && s.Spec.Type == corev1.ServiceTypeLoadBalancer && out.ExternalLocal {
		out.HealthPort, _ = f.port("spec.healthCheckNodePort", s.Spec.HealthCheckNodePort)
	}
	for i, sp := range s.Spec.Ports {
		field := fmt.Sprintf("spec.ports[%d]", i)
		proto, ok := f.protocol(field+".protocol", sp.Protocol)
		port, ok2 := f.port(field+".port", sp.Port)
		if !ok || !ok2 {
			continue
		}
		p := model.ServicePort{Name: sp.Name, Protocol: proto, Port: port}
		if sp.NodePort != 0 {
			p.NodePort, _ = f.port(field+".nodePort", sp.NodePort)
		}
		out.Ports = append(out.Ports, p)
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.Affinity = f.affinity(s.Spec.SessionAffinityConfig)
	}
	return out, f.List
}

// maglev reads the annotation that asks for consistent hashing.
func (f *finding) maglev(annotations map[string]string) bool {
	text, ok := annotations[model.AnnotationStrategy]
	if ok && !strings.EqualFold(text, "maglev") {
		f.Add("metadata.annotations["+model.AnnotationStrategy+"]", text,
			"is not maglev; backends are chosen at random", "correct it, or remove it")
		return false
	}
	return ok
}

// externalMode reads the annotation that overrides bpfExternalServiceMode.
func (f *finding) externalMode(annotations map[string]string) model.ExternalMode {
	text, ok := annotations[model.AnnotationExternalMode]
	if !ok {
		return ""
	}
	switch m := model.ExternalMode(strings.ToLower(text)); m {
	case model.ExternalModeTunnel, model.ExternalModeDSR:
		return m
	}
	f.Add("metadata.annotations["+model.AnnotationExternalMode+"]", text,
		"is neither tunnel nor dsr; bpfExternalServiceMode is in force", "correct it, or remove it")
	return ""
}

func (f *finding) affinity(c *corev1.SessionAffinityConfig) uint32 {
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
	}
	v := *c.ClientIP.TimeoutSeconds
	if v < 1 || v > 86400 {
		f.Add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", fmt.Sprint(v),
			"is not within 1..86400; 10800 is in force", "correct it")
		return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
	}
	return uint32(v)
}

// maxSourceRanges bounds what one Service may put into the table of source ranges.
const maxSourceRanges = 1024

// sourceRanges returns whom the load balancer's addresses are for, and whether they are for these
// alone. A range that cannot be read admits nobody.
func (f *finding) sourceRanges(s *corev1.Service) (ranges []netip.Prefix, restricted bool) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || len(s.Spec.LoadBalancerSourceRanges) == 0 {
		return nil, false
	}
	for i, text := range s.Spec.LoadBalancerSourceRanges {
		field := fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i)
		if len(ranges) == maxSourceRanges {
			f.Add(field, text, fmt.Sprintf("is beyond the first %d; it and what follows admit nobody", maxSourceRanges), "merge ranges")
			break
		}
		p, err := parse.Prefix(strings.TrimSpace(text), false) // spaces are allowed by the API
		if err != nil {
			f.Add(field, text, err.Error()+"; it admits nobody", "correct it")
			continue
		}
		ranges = append(ranges, p)
	}
	return ranges, true
}

// loadBalancerIPs returns the load balancer's addresses that this cluster answers on itself: not
// those of mode Proxy (KEP-1860).
func (f *finding) loadBalancerIPs(s *corev1.Service) []netip.Addr {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var out []netip.Addr
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP == "" || in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy {
			continue
		}
		if a, ok := f.unicast(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP); ok {
			out = append(out, a)
		}
	}
	return out
}

// ConvertEndpointSlice converts an EndpointSlice. It returns nil for those of no Service and with
// names instead of addresses. Those of headless Services and of other proxies are for policy alone.
func ConvertEndpointSlice(s *discoveryv1.EndpointSlice) (*model.EndpointSlice, []weirv1.Problem) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil
	}
	f := newFinding("EndpointSlice", s)
	out := &model.EndpointSlice{Name: parse.NameOf(s), Service: model.Name{Namespace: s.Namespace, Name: service},
		NotCarried: notOurs(s.Labels)}
	// A time that cannot be read is none: it is measured by, and by nothing else.
	if at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		out.ChangedAt = at.UnixNano()
	}
	for i, sp := range s.Ports {
		if sp.Port == nil {
			continue // every port: a meaning that Services do not give
		}
		var protocol corev1.Protocol
		if sp.Protocol != nil {
			protocol = *sp.Protocol
		}
		field := fmt.Sprintf("ports[%d]", i)
		proto, ok := f.protocol(field+".protocol", protocol)
		port, ok2 := f.port(field+".port", *sp.Port)
		if !ok || !ok2 {
			continue
		}
		p := model.EndpointPort{Protocol: proto, Port: port}
		if sp.Name != nil {
			p.Name = *sp.Name
		}
		out.Ports = append(out.Ports, p)
	}
	for i, ep := range s.Endpoints {
		// Every address of an endpoint means the same thing; only the first is used (API
		// reference).
		if len(ep.Addresses) == 0 {
			continue
		}
		a, ok := f.unicast(fmt.Sprintf("endpoints[%d].addresses[0]", i), ep.Addresses[0])
		if !ok {
			continue
		}
		e := model.ServiceEndpoint{Addrs: []netip.Addr{a}, Ready: isTrue(ep.Conditions.Ready, true)}
		e.Serving = isTrue(ep.Conditions.Serving, e.Ready)
		e.Terminating = isTrue(ep.Conditions.Terminating, false)
		if ep.NodeName != nil {
			e.Node = *ep.NodeName
		}
		if ep.Hints != nil {
			var zones, nodes []string
			for _, z := range ep.Hints.ForZones {
				zones = append(zones, z.Name)
			}
			for _, n := range ep.Hints.ForNodes {
				nodes = append(nodes, n.Name)
			}
			e.Hints = model.HintsFor(zones, nodes)
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out, f.List
}

func isTrue(b *bool, unset bool) bool {
	if b == nil {
		return unset
	}
	return *b
}

// unicast parses an address that packets may be sent to on somebody's behalf. Loopback, link-local
// and multicast addresses would turn a Service or a pod's status into a way to the node's own
// sockets.
func (f *finding) unicast(field, text string) (netip.Addr, bool) {
	a, err := parse.Addr(text)
	if err != nil {
		f.Add(field, text, "is not an IP address; it is left out", "correct it")
		return a, false
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a == broadcast {
		f.Add(field, text, "is a loopback, link-local, multicast or unspecified address; it is left out", "use a routable address")
		return a, false
	}
	return a, true
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (f *finding) protocol(field string, p corev1.Protocol) (model.Protocol, bool) {
	proto, ok := protocolOf(p)
	if !ok {
		f.Add(field, string(p), "is none of TCP, UDP, SCTP; the port is left out", "correct it")
	}
	return proto, ok
}

func protocolOf(p corev1.Protocol) (model.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return model.ProtocolTCP, true
	case corev1.ProtocolUDP:
		return model.ProtocolUDP, true
	case corev1.ProtocolSCTP:
		return model.ProtocolSCTP, true
	}
	return 0, false
}

func (f *finding) port(field string, v int32) (uint16, bool) {
	if v < 1 || v > 65535 {
		f.Add(field, fmt.Sprint(v), "is not within 1..65535; the port is left out", "correct it")
		return 0, false
	}
	return uint16(v), true
}
