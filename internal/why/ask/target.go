// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/model"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// defaultSourcePort is of those that client sockets get (RFC 6335, section 6).
const defaultSourcePort = 50000

// destination is where a connection goes, as it was written.
type destination struct {
	host  string
	port  string // number or name; empty for ICMP
	proto string // lower case; empty = not said
}

// parseTarget reads HOST:PORT[/PROTOCOL] and HOST/icmp.
func parseTarget(text string) (t destination, err error) {
	t.host = text
	if at := strings.LastIndexByte(text, '/'); at >= 0 {
		switch p := strings.ToLower(text[at+1:]); p {
		case "tcp", "udp", "sctp", "icmp":
			t.host, t.proto = text[:at], p
		}
	}
	if t.proto == "icmp" {
		t.host = strings.TrimSuffix(strings.TrimPrefix(t.host, "["), "]")
		return t, nil
	}
	at := strings.LastIndexByte(t.host, ':')
	if at < 0 || at == len(t.host)-1 || at == 0 {
		return t, fmt.Errorf("target %q: want TARGET:PORT[/PROTOCOL], or TARGET/icmp", text)
	}
	t.host, t.port = t.host[:at], t.host[at+1:]
	if bare := strings.TrimSuffix(strings.TrimPrefix(t.host, "["), "]"); bare != t.host {
		t.host = bare
	} else if strings.Contains(t.host, ":") {
		return t, fmt.Errorf("target %q: an IPv6 address with a port needs brackets", text)
	}
	return t, nil
}

// resolver finds the objects that names refer to.
type resolver struct {
	kube      kubernetes.Interface
	namespace string
}

// end is one end of a connection.
type end struct {
	text  string
	addrs []netip.Addr
	node  string // empty = outside of the cluster, or not known
	hook  string // of a source
	ports []corev1.ServicePort
}

// resolve turns what was written into a question, and names the node to ask first.
func resolve(ctx context.Context, kube kubernetes.Interface, source, target string, o Options) (*Story, string, error) {
	r := resolver{kube, o.Namespace}
	t, err := parseTarget(target)
	if err != nil {
		return nil, "", err
	}
	from, err := r.source(ctx, source)
	if err != nil {
		return nil, "", err
	}
	to, err := r.target(ctx, t.host)
	if err != nil {
		return nil, "", err
	}
	q := whywire.Request{Hook: from.hook, SourcePort: o.SourcePort}
	if q.SourcePort == 0 {
		q.SourcePort = defaultSourcePort
	}
	if q.Source, q.Destination, err = ofOneFamily(from, to); err != nil {
		return nil, "", err
	}
	if o.SourceAddr != "" {
		if q.Sender, q.Source, q.Destination, err = sendsWith(from, to, o.SourceAddr); err != nil {
			return nil, "", err
		}
	}
	if q.Protocol, q.Port, err = to.portOf(t, q.Destination); err != nil {
		return nil, "", err
	}
	if o.Backend != "" {
		if q.Backend, err = netip.ParseAddrPort(o.Backend); err != nil {
			return nil, "", fmt.Errorf("--backend %q: want ADDRESS:PORT", o.Backend)
		}
	}
	node := from.node
	if from.hook == whywire.FromUplink {
		if node = o.Node; node == "" {
			node, err = r.nodeWith(ctx, q.Destination)
		}
	}
	if err == nil {
		err = q.Check()
	}
	return &Story{Source: from.text, Target: to.text, Request: q}, node, err
}

// ofOneFamily returns an address of each end, IPv4 ones where there are such.
func ofOneFamily(from, to *end) (a, b netip.Addr, err error) {
	for _, four := range []bool{true, false} {
		for _, a := range from.addrs {
			for _, b := range to.addrs {
				if a.Is4() == four && b.Is4() == four {
					return a, b, nil
				}
			}
		}
	}
	return a, b, fmt.Errorf("%s %v and %s %v have no addresses of one family", from.text, from.addrs, to.text, to.addrs)
}

// sendsWith returns the addresses of a connection of a pod with a source that is not its own, and
// the pod's own address.
func sendsWith(from, to *end, text string) (own, source, destination netip.Addr, err error) {
	source, err = netip.ParseAddr(text)
	switch {
	case err != nil || source.Is4In6() || source.Zone() != "":
		return own, source, destination, fmt.Errorf("--source-address %q is no address", text)
	case from.hook != whywire.FromWorkload:
		return own, source, destination, fmt.Errorf("--source-address: %s is no pod with a network of its own, which alone may be granted other addresses", from.text)
	}
	of := *from
	of.addrs = slices.DeleteFunc(slices.Clone(from.addrs), func(a netip.Addr) bool { return a.Is4() != source.Is4() })
	if own, destination, err = ofOneFamily(&of, to); err != nil {
		return own, source, destination, err
	}
	if slices.Contains(from.addrs, source) {
		own = netip.Addr{}
	}
	return own, source, destination, nil
}

// source finds where a connection begins.
func (r resolver) source(ctx context.Context, text string) (*end, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return &end{text: a.String(), addrs: []netip.Addr{a}, hook: whywire.FromUplink}, nil
	}
	if name, ok := strings.CutPrefix(text, "node/"); ok {
		return r.node(ctx, name)
	}
	name := r.name(strings.TrimPrefix(text, "pod/"))
	pod, err := r.kube.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	if pod.Spec.HostNetwork && pod.Spec.NodeName != "" {
		e, err := r.node(ctx, pod.Spec.NodeName)
		if err == nil {
			e.text = "pod " + name.String() + " in the network of " + e.text
		}
		return e, err
	}
	e := podEnd(pod)
	if e.hook = whywire.FromWorkload; len(e.addrs) == 0 || e.node == "" {
		return nil, fmt.Errorf("pod %s has no address (yet)", name)
	}
	return e, nil
}

func podEnd(pod *corev1.Pod) *end {
	e := &end{text: "pod " + pod.Namespace + "/" + pod.Name, node: pod.Spec.NodeName}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			e.addrs = append(e.addrs, a)
		}
	}
	return e
}

func (r resolver) node(ctx context.Context, name string) (*end, error) {
	n, err := r.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	e := &end{text: "node " + name, node: name, hook: whywire.ToUplink, addrs: nodeAddresses(n)}
	if len(e.addrs) == 0 {
		return nil, fmt.Errorf("node %s has no address", name)
	}
	return e, nil
}

func nodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if p, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
				out = append(out, p)
			}
		}
	}
	return out
}

// nodeWith finds the node that has an address.
func (r resolver) nodeWith(ctx context.Context, a netip.Addr) (string, error) {
	nodes, err := r.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("find the node that has %s: %w", a, err)
	}
	for i := range nodes.Items {
		for _, have := range nodeAddresses(&nodes.Items[i]) {
			if have == a {
				return nodes.Items[i].Name, nil
			}
		}
	}
	return "", fmt.Errorf("%s is the address of no node; name the node where the packet comes in by --node", a)
}

// name reads NAMESPACE/NAME, or NAME in the namespace of names that say none.
func (r resolver) name(text string) model.Name {
	if ns, name, ok := strings.Cut(text, "/"); ok {
		return model.Name{Namespace: ns, Name: name}
	}
	return model.Name{Namespace: r.namespace, Name: text}
}

// target finds where a connection goes.
func (r resolver) target(ctx context.Context, text string) (*end, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return &end{text: a.String(), addrs: []netip.Addr{a}}, nil
	}
	if name, ok := strings.CutPrefix(text, "node/"); ok {
		return r.node(ctx, name)
	}
	if name, ok := strings.CutPrefix(text, "svc/"); ok {
		return r.service(ctx, r.name(name))
	}
	if name, ok := strings.CutPrefix(text, "pod/"); ok {
		return r.pod(ctx, r.name(name))
	}
	name := r.name(text)
	if svc, ns, ok := strings.Cut(text, "."); ok && !strings.Contains(text, "/") { // a Service's name has no dots
		ns, _, _ = strings.Cut(ns, ".") // NAME.NAMESPACE.svc.cluster.local
		name = model.Name{Namespace: ns, Name: svc}
	}
	e, err := r.service(ctx, name)
	if !apierrors.IsNotFound(err) {
		return e, err
	}
	pod, podErr := r.pod(ctx, r.name(text))
	if apierrors.IsNotFound(podErr) {
		return nil, fmt.Errorf("there is neither a Service nor a pod %s", name)
	}
	return pod, podErr
}

func (r resolver) pod(ctx context.Context, name model.Name) (*end, error) {
	pod, err := r.kube.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	e := podEnd(pod)
	if len(e.addrs) == 0 {
		return nil, fmt.Errorf("pod %s has no address (yet)", name)
	}
	return e, nil
}

func (r resolver) service(ctx context.Context, name model.Name) (*end, error) {
	svc, err := r.kube.CoreV1().Services(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", name, err)
	}
	e := &end{text: "Service " + name.String(), ports: svc.Spec.Ports}
	for _, ip := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			e.addrs = append(e.addrs, a)
		}
	}
	if len(e.addrs) == 0 {
		return nil, fmt.Errorf("service %s has no cluster IP: its name resolves to its pods; name one of them", name)
	}
	return e, nil
}

// portOf returns the protocol and the number of the port that was asked for.
func (e *end) portOf(t destination, to netip.Addr) (model.Protocol, uint16, error) {
	if t.proto == "icmp" {
		if to.Is4() {
			return model.ProtocolICMP, 0, nil
		}
		return model.ProtocolICMPv6, 0, nil
	}
	n, err := strconv.ParseUint(t.port, 10, 16)
	numbered := err == nil && n > 0
	for _, p := range e.ports {
		proto := strings.ToLower(string(p.Protocol))
		if (p.Name == t.port || numbered && p.Port == int32(n)) && (t.proto == "" || t.proto == proto) {
			return protocols[proto], uint16(p.Port), nil
		}
	}
	switch {
	case numbered && t.proto == "":
		return model.ProtocolTCP, uint16(n), nil
	case numbered:
		return protocols[t.proto], uint16(n), nil
	case e.ports != nil:
		return 0, 0, fmt.Errorf("%s has no port %q", e.text, t.port)
	}
	return 0, 0, errors.New("a port is a number from 1 to 65535; only Services have names for theirs")
}

var protocols = map[string]model.Protocol{"tcp": model.ProtocolTCP, "udp": model.ProtocolUDP, "sctp": model.ProtocolSCTP}
