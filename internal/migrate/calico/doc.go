// SPDX-License-Identifier: Apache-2.0

// Package calico says what a migration from Calico to Weir means, from the objects of
// crd.projectcalico.org/v1 and of Calico's manifests: which are copied to projectcalico.org/v3,
// which pods, blocks and addresses each node has, what stops the migration, and what differs
// afterwards, field by field. It is pure: objects come from the API server or from files, and
// nothing is changed.
package calico

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/migrate/plan"
)

// Group is the API group in which Calico stores its objects.
const Group = "crd.projectcalico.org"

// NodeDaemon is the name of Calico's DaemonSet in all of its manifests.
const NodeDaemon = "calico-node"

// configMap is that of Calico's manifests.
const configMap = "calico-config"

// Cluster is what a plan is made from.
type Cluster struct {
	// Objects are those of crd.projectcalico.org/v1.
	Objects []*unstructured.Unstructured
	Nodes   []corev1.Node
	Pods    []corev1.Pod
	// Daemon is Calico's DaemonSet, nil where there is none.
	Daemon *appsv1.DaemonSet
	// Config is ConfigMap calico-config, nil where there is none.
	Config *corev1.ConfigMap
	// Operated: Calico is kept by its operator (operator.tigera.io), which undoes what is changed.
	Operated bool
	// Served: an API server of Calico's serves projectcalico.org/v3.
	Served bool
}

// Finding is something that a user has to know before a migration.
type Finding = plan.Finding

// Node is what Calico has on one node.
type Node struct {
	Name string
	// Pods are those with a network of their own, which are made again with Weir.
	Pods int
	// Blocks are those with affinity to the node, in order.
	Blocks []Block
}

// Addresses counts the addresses that are in use in the node's blocks.
func (n Node) Addresses() int {
	sum := 0
	for _, b := range n.Blocks {
		sum += len(b.Allocations)
	}
	return sum
}

// Plan is what a migration means.
type Plan struct {
	// Version is Calico's, as ClusterInformation has it; empty = not known.
	Version string
	// Findings come with those that stop the migration first.
	Findings []Finding
	// Copies are the objects of projectcalico.org/v3 that take the place of Calico's.
	Copies []*unstructured.Unstructured
	Nodes  []Node
}

// Stopped reports whether something has to be changed before.
func (p *Plan) Stopped() bool {
	return slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Stops })
}

// FromObjects sorts objects of any kind, such as those of a recorded cluster, into a Cluster. Kinds
// that a plan does not need are left out; an object that cannot be read is an error.
func FromObjects(objects []*unstructured.Unstructured) (*Cluster, error) {
	c := &Cluster{}
	for _, u := range objects {
		var err error
		switch gk := u.GroupVersionKind().GroupKind(); {
		case gk.Group == Group:
			c.Objects = append(c.Objects, u)
		case gk.String() == "Node":
			err = appendAs(u, &c.Nodes)
		case gk.String() == "Pod":
			err = appendAs(u, &c.Pods)
		case gk.String() == "DaemonSet.apps" && u.GetName() == NodeDaemon:
			c.Daemon = &appsv1.DaemonSet{}
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c.Daemon)
		case gk.String() == "ConfigMap" && u.GetName() == configMap:
			c.Config = &corev1.ConfigMap{}
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c.Config)
		case gk.Group == "operator.tigera.io" && gk.Kind == "Installation":
			c.Operated = true
		case gk.String() == "APIService.apiregistration.k8s.io" && u.GetName() == APIService:
			service, _, _ := unstructured.NestedMap(u.Object, "spec", "service")
			c.Served = service != nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return c, nil
}

// APIService is the one by which Calico's API server serves projectcalico.org/v3.
const APIService = "v3.projectcalico.org"

func appendAs[T any](u *unstructured.Unstructured, to *[]T) error {
	var v T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v); err != nil {
		return err
	}
	*to = append(*to, v)
	return nil
}

// New makes a plan. Objects that cannot be read are findings that stop it.
func New(c *Cluster) *Plan {
	p := &planner{Cluster: c, plan: &Plan{}}
	p.installation()
	p.network()
	p.copies()
	p.nodes()
	plan.StopsFirst(p.plan.Findings)
	return p.plan
}

// planner makes a plan.
type planner struct {
	*Cluster
	plan *Plan
	// environ is what Calico's DaemonSet sets for Felix, as FELIX_NAME=value.
	environ []string
	inPlace bool // pods keep running
	// vxlan, ipip: a pool in use has that; crossSubnet: one has it between networks alone.
	vxlan, ipip, crossSubnet bool
}

// stop says what has to be changed first.
func (p *planner) stop(object, field, value, message, action string) {
	p.plan.Findings = append(p.plan.Findings, Finding{Stops: true,
		Problem: weirv1.Problem{Object: object, Field: field, Value: value, Message: message, Action: action}})
}

// differs says what is another way afterwards.
func (p *planner) differs(object, field, value, message, action string) {
	p.plan.Findings = append(p.plan.Findings, Finding{
		Problem: weirv1.Problem{Object: object, Field: field, Value: value, Message: message, Action: action}})
}

// ofKind are the objects of a kind.
func (p *planner) ofKind(kind string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, u := range p.Objects {
		if u.GetKind() == kind {
			out = append(out, u)
		}
	}
	return out
}
