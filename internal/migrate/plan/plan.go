// SPDX-License-Identifier: Apache-2.0

// Package plan is what a migration to Weir means, whatever network plugin a cluster has: what has
// to be changed before, what differs afterwards, field by field, which objects take the place of
// the plugin's, and what each node has. The packages of the plugins beside it make plans, from
// objects of the API server or of files.
package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// Finding is something that a user has to know before a migration.
type Finding struct {
	weirv1.Problem
	// Stops: it has to be changed before. Otherwise something differs afterwards.
	Stops bool
}

// Node is what the plugin has on one node.
type Node struct {
	Name string
	// Pods are those with a network of their own, which are made again with Weir.
	Pods int
	// Networks are those from which its pods have addresses.
	Networks []string
}

// StopsFirst has the findings that stop the migration come first, and keeps the order otherwise.
func StopsFirst(all []Finding) {
	slices.SortStableFunc(all, func(a, b Finding) int {
		switch {
		case a.Stops == b.Stops:
			return 0
		case a.Stops:
			return -1
		}
		return 1
	})
}

// Plan is what a migration means.
type Plan struct {
	Plugin string // as users call it
	// Version is the plugin's, by its image; empty = not known.
	Version string
	// Findings come with those that stop the migration first, once Sort was called.
	Findings []Finding
	// Objects take the place of the plugin's.
	Objects []*unstructured.Unstructured
	Nodes   []Node
}

// Stop says what has to be changed first.
func (p *Plan) Stop(object, field, value, message, action string) {
	p.add(true, object, field, value, message, action)
}

// Differs says what is another way afterwards.
func (p *Plan) Differs(object, field, value, message, action string) {
	p.add(false, object, field, value, message, action)
}

func (p *Plan) add(stops bool, object, field, value, message, action string) {
	p.Findings = append(p.Findings, Finding{Stops: stops,
		Problem: weirv1.Problem{Object: object, Field: field, Value: value, Message: message, Action: action}})
}

// Stopped reports whether something has to be changed before.
func (p *Plan) Stopped() bool {
	return slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Stops })
}

// Sort has the findings that stop the migration come first, and nodes by their names.
func (p *Plan) Sort() {
	StopsFirst(p.Findings)
	slices.SortFunc(p.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
}

// Object makes an object that takes the place of one of the plugin's.
func Object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}}
}

// As reads an object as one of a type.
func As[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}

// Common are the objects that each plan is made from, whatever the plugin.
type Common struct {
	Nodes    []corev1.Node
	Pods     []corev1.Pod
	Policies []networkingv1.NetworkPolicy
}

// Take takes an object that is one of these.
func (c *Common) Take(u *unstructured.Unstructured) (taken bool, err error) {
	switch u.GroupVersionKind().GroupKind().String() {
	case "Node":
		err = appendAs(u, &c.Nodes)
	case "Pod":
		err = appendAs(u, &c.Pods)
	case "NetworkPolicy.networking.k8s.io":
		err = appendAs(u, &c.Policies)
	default:
		return false, nil
	}
	return true, err
}

func appendAs[T any](u *unstructured.Unstructured, to *[]T) error {
	v, err := As[T](u)
	if err == nil {
		*to = append(*to, *v)
	}
	return err
}

// AddNodes counts what runs on nodes, and finds what a drain means for pods. networks are those of
// a node.
func (c *Common) AddNodes(p *Plan, networks func(*corev1.Node) []string) {
	of := map[string]*Node{}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		of[n.Name] = &Node{Name: n.Name, Networks: networks(n)}
		if n.Labels[corev1.LabelOSStable] == "windows" {
			p.Stop("Node "+n.Name, "metadata.labels["+corev1.LabelOSStable+"]", "windows", "Weir runs on Linux alone", "take the node out of the cluster")
		}
	}
	for i := range c.Pods {
		pod := &c.Pods[i]
		n := of[pod.Spec.NodeName]
		if pod.Spec.HostNetwork || n == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		n.Pods++
		if len(pod.OwnerReferences) == 0 {
			p.Differs("Pod "+pod.Namespace+"/"+pod.Name, "metadata.ownerReferences", "", "has no controller: when its node is drained nobody makes it again",
				"give it a controller, or make it again yourself")
		}
	}
	for _, n := range of {
		p.Nodes = append(p.Nodes, *n)
	}
}

// InForce says that NetworkPolicies which the plugin leaves without effect are enforced by Weir.
func (c *Common) InForce(p *Plan) {
	for _, np := range c.Policies {
		p.Differs("NetworkPolicy "+np.Namespace+"/"+np.Name, "spec.podSelector", selector(&np), "is without effect with "+p.Plugin+", and in force with Weir",
			"see that it allows what its pods need, or delete it")
	}
}

func selector(np *networkingv1.NetworkPolicy) string {
	if len(np.Spec.PodSelector.MatchLabels)+len(np.Spec.PodSelector.MatchExpressions) == 0 {
		return "all pods"
	}
	raw, err := json.Marshal(np.Spec.PodSelector)
	if err != nil {
		return ""
	}
	return string(raw)
}

// PodCIDRs are the networks that the API server has given a node for its pods.
func PodCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) > 0 {
		return n.Spec.PodCIDRs
	}
	if n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return nil
}

// InternalIP is the address of a node of IPv4; invalid = it has none.
func InternalIP(n *corev1.Node) netip.Addr {
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && addr.Is4() {
			return addr
		}
	}
	return netip.Addr{}
}

// Tag is the version that an image's name ends with.
func Tag(image string) string {
	image, _, _ = strings.Cut(image, "@")
	at := strings.LastIndexByte(image, ':')
	if at < 0 || strings.Contains(image[at:], "/") {
		return ""
	}
	return image[at+1:]
}

// Covers returns for each family the smallest network that holds all networks of it, IPv4 first.
func Covers(all []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, six := range []bool{false, true} {
		cover := netip.Prefix{}
		for _, p := range all {
			if p.Addr().Is6() != six {
				continue
			}
			if !cover.IsValid() {
				cover = p.Masked()
			}
			bits := min(cover.Bits(), p.Bits())
			for cover = netip.PrefixFrom(cover.Addr(), bits).Masked(); !cover.Contains(p.Addr()); cover = netip.PrefixFrom(cover.Addr(), bits).Masked() {
				bits--
			}
		}
		if cover.IsValid() {
			out = append(out, cover)
		}
	}
	return out
}
