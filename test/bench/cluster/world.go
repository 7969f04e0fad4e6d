// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/bench/store"
	"github.com/weir-net/weir/internal/fanout/names"
)

// Sizes of a world.
const (
	maxNodes     = 8000 // blocks of a /25 each in the pool
	podsANode    = 100
	podsOfOurs   = 110 // on the node of the real agent
	namespaces   = 200
	apps         = 5
	endpointsOf  = 60
	blockBits    = 25
	poolName     = "pods"
	poolCIDR     = "10.128.0.0/10"
	agentAccount = "weir-node"
)

// Objects of the probes (probe.go).
const (
	probeSpace = "bench-probe"
	targetPod  = "target" // on our node
	probePod   = "probe"  // on another one: its labels change
	steadyPod  = "steady" // likewise: its labels do not
	openLabel  = "open"   // lets the probe in
	spaceLabel = "kubernetes.io/metadata.name"
	teamLabel  = "team" // of namespaces, a different one for each
)

// podRef is a pod that load changes.
type podRef struct {
	space, name string
	node        int
	addr        netip.Addr
}

// world is what a cluster of some nodes has, drawn at random.
type world struct {
	options
	nodes int
	pods  []podRef
	born  metav1.Time
}

func newWorld(o options, nodes int) *world {
	w := &world{options: o, nodes: nodes, born: metav1.NewTime(time.Now().Truncate(time.Second))}
	r := rand.New(rand.NewPCG(o.seed, 1))
	for n := range nodes {
		count := podsANode
		if n == 0 {
			count = podsOfOurs
		}
		addr := block(n).Addr().Next() // the first address is the network's
		for j := range count {
			addr = addr.Next()
			w.pods = append(w.pods, podRef{space: spaceName(r.IntN(namespaces)), name: fmt.Sprintf("pod-%05d-%d", n, j), node: n, addr: addr})
		}
	}
	return w
}

func nodeName(i int) string  { return fmt.Sprintf("node-%05d", i) }
func spaceName(i int) string { return fmt.Sprintf("ns%d", i) }
func agentName(i int) string { return "weir-" + nodeName(i) }
func appName(i int) string   { return fmt.Sprintf("app%d", i) }

func nodeAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 31, byte((i + 1) >> 8), byte(i + 1)})
}

// block is the range of a node's pods.
func block(i int) netip.Prefix {
	at := 10<<24 + 128<<16 + i<<(32-blockBits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}), blockBits)
}

// late is an address near the end of a node's block, which none of its drawn pods has.
func late(node, i int) netip.Addr {
	a := block(node).Addr().As4()
	a[3] += byte(126 - i)
	return netip.AddrFrom4(a)
}

func (w *world) meta(space, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: space, Name: name, UID: uuid.NewUUID(), CreationTimestamp: w.born, Generation: 1, Labels: labels}
}

// objects are all but Services.
func (w *world) objects() iter.Seq[runtime.Object] {
	return func(yield func(runtime.Object) bool) {
		for o := range w.spaces() {
			if !yield(o) {
				return
			}
		}
		r := rand.New(rand.NewPCG(w.seed, 2))
		for i := range w.nodes {
			if !yield(w.node(i)) || !yield(w.block(i)) || !yield(w.agent(i)) {
				return
			}
		}
		for i := range w.pods {
			p := &w.pods[i]
			if !yield(w.pod(p.space, p.name, p.node, p.addr, map[string]string{"app": appName(r.IntN(apps)), "version": fmt.Sprint("v", r.IntN(3))})) {
				return
			}
		}
		for i := range w.policies {
			if !yield(w.policy(i, r)) {
				return
			}
		}
		for _, o := range w.probes() {
			if !yield(o) {
				return
			}
		}
	}
}

func (w *world) spaces() iter.Seq[runtime.Object] {
	return func(yield func(runtime.Object) bool) {
		for i := range namespaces + 1 {
			name := spaceName(i)
			if i == namespaces {
				name = probeSpace
			}
			if !yield(&corev1.Namespace{ObjectMeta: w.meta("", name, map[string]string{spaceLabel: name, teamLabel: fmt.Sprint("team", i)}),
				Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
				Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}) {
				return
			}
		}
	}
}

func (w *world) node(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: w.meta("", nodeName(i), map[string]string{"kubernetes.io/hostname": nodeName(i), "kubernetes.io/os": "linux"}),
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddr(i).String()}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: w.born, LastTransitionTime: w.born}}}}
}

func (w *world) block(i int) *unstructured.Unstructured {
	cidr := block(i).String()
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": weirv1.GroupVersion.String(), "kind": "IPAMBlock",
		"metadata": map[string]any{"name": weirv1.BlockName(block(i)), "uid": string(uuid.NewUUID()), "creationTimestamp": w.born.UTC().Format(time.RFC3339), "generation": int64(1)},
		"spec":     map[string]any{"cidr": cidr, "node": nodeName(i), "pool": poolName}}}
}

// pod is one that runs, as the API server stores it with its defaults.
func (w *world) pod(space, name string, node int, addr netip.Addr, labels map[string]string) *corev1.Pod {
	grace, links := int64(30), true
	p := &corev1.Pod{ObjectMeta: w.meta(space, name, labels),
		Spec: corev1.PodSpec{NodeName: nodeName(node), ServiceAccountName: "default", DeprecatedServiceAccount: "default", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			TerminationGracePeriodSeconds: &grace, SecurityContext: &corev1.PodSecurityContext{}, SchedulerName: corev1.DefaultSchedulerName, EnableServiceLinks: &links,
			Containers: []corev1.Container{{Name: "main", Image: "example.org/main:1", ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &w.born, HostIP: nodeAddr(node).String(), HostIPs: []corev1.HostIP{{IP: nodeAddr(node).String()}},
			PodIP: addr.String(), PodIPs: []corev1.PodIP{{IP: addr.String()}}, QOSClass: corev1.PodQOSBestEffort}}
	for _, t := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: w.born})
	}
	if node == 0 { // the real agent gives it that address
		p.Annotations = map[string]string{"cni.projectcalico.org/ipAddrs": fmt.Sprintf("[%q]", addr)}
	}
	return p
}

// agent is the pod by which an agent proves itself.
func (w *world) agent(i int) *corev1.Pod {
	p := w.pod(names.Namespace, agentName(i), i, nodeAddr(i), map[string]string{"k8s-app": "weir-node"})
	p.Annotations = nil
	p.Spec.HostNetwork, p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount = true, agentAccount, agentAccount
	p.Spec.Containers[0].Ports = nil
	return p
}

// policy has ten rules: half of their peers are pods of its own namespace, 40 % all pods of 1 to
// 5 % of the namespaces, 10 % networks. The first policy of each namespace selects all of its pods,
// and lets the probe in, which concerns every node so.
func (w *world) policy(i int, r *rand.Rand) *networkingv1.NetworkPolicy {
	space := spaceName(i % namespaces)
	tcp, port := corev1.ProtocolTCP, intstr.FromInt32(8080)
	p := &networkingv1.NetworkPolicy{ObjectMeta: w.meta(space, fmt.Sprint("p", i), nil), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": appName(r.IntN(apps))}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
	for range 10 {
		var peer networkingv1.NetworkPolicyPeer
		switch k := r.IntN(10); {
		case k < 5:
			peer.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": appName(r.IntN(apps))}}
		case k < 9:
			var in []string
			for range namespaces/100 + r.IntN(namespaces*4/100+1) {
				in = append(in, fmt.Sprint("team", r.IntN(namespaces)))
			}
			peer.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: teamLabel, Operator: metav1.LabelSelectorOpIn, Values: in}}}
		default:
			peer.IPBlock = &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.168.%d.0/24", r.IntN(256))}
		}
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &port}},
			From: []networkingv1.NetworkPolicyPeer{peer}})
	}
	if i < namespaces {
		p.Spec.PodSelector = metav1.LabelSelector{}
		p.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{spaceLabel: probeSpace}}}}
	}
	return p
}

// probes are the pods and policies by which changes are timed.
func (w *world) probes() []runtime.Object {
	target := w.pod(probeSpace, targetPod, 0, late(0, 0), map[string]string{"app": targetPod})
	probe := w.pod(probeSpace, probePod, 1, late(1, 0), map[string]string{"app": "m0", openLabel: "no"})
	steady := w.pod(probeSpace, steadyPod, 1, late(1, 1), map[string]string{"app": steadyPod})
	return []runtime.Object{target, probe, steady, w.probePolicy("labels", map[string]string{openLabel: "yes"}, probePort), w.probePolicy("ports", map[string]string{"app": steadyPod}, policyPort)}
}

// policyOfAll lets all pods of the cluster reach pods of a namespace.
func (w *world) policyOfAll(space, name string, to metav1.LabelSelector) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: to, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}}}
}

// probePolicy lets pods with labels reach a port of the target.
func (w *world) probePolicy(name string, from map[string]string, number int) *networkingv1.NetworkPolicy {
	udp, port := corev1.ProtocolUDP, intstr.FromInt32(int32(number))
	return &networkingv1.NetworkPolicy{ObjectMeta: w.meta(probeSpace, name, nil), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": targetPod}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &port}},
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: from}}}}}}}
}

// serviceObjects are Services of 60 endpoints in clusters of all sizes: pods of their namespace
// drawn at random, and where it has not as many, of the namespaces that follow it.
func (w *world) serviceObjects() []store.Service {
	r := rand.New(rand.NewPCG(w.seed, 3))
	in := map[string][]podRef{}
	for _, p := range w.pods {
		in[p.space] = append(in[p.space], p)
	}
	var out []store.Service
	for i := range w.services {
		s := store.Service{Namespace: spaceName(i % namespaces), Name: fmt.Sprint("s", i), Port: 8080, IP: netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)})}
		for next := range namespaces {
			all := in[spaceName((i+next)%namespaces)]
			for _, k := range r.Perm(len(all))[:min(len(all), endpointsOf-len(s.Endpoints))] {
				p := all[k]
				s.Endpoints = append(s.Endpoints, store.Endpoint{Addr: p.addr, Port: 8080, Node: nodeName(p.node)})
			}
		}
		out = append(out, s)
	}
	return out
}
