// SPDX-License-Identifier: Apache-2.0

// Package objects has the policies of a cluster, and what they refer to, as the API server or a
// file has them, and as they would be after a change that nobody makes: objects of files applied,
// others deleted. Both become the model by the conversion that agents use. Objects are read with
// the user's rights, and checked as `weir apply` checks them. What policy decides it does not know.
package objects

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/watch"
)

// Cluster has the objects that policy depends on.
type Cluster struct {
	base  *model.Cluster                    // all but what may be tried
	tried map[id]*unstructured.Unstructured // what may be tried, as it is
}

func newCluster() *Cluster {
	return &Cluster{base: model.NewCluster(), tried: map[id]*unstructured.Unstructured{}}
}

// FromObjects returns a cluster of recorded objects, as `kubectl get -o yaml` prints them. Kinds
// that policy does not depend on are left out.
func FromObjects(all []*unstructured.Unstructured) (*Cluster, error) {
	c := newCluster()
	for _, u := range all {
		if err := c.add(u); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add takes an object.
func (c *Cluster) add(u *unstructured.Unstructured) (err error) {
	switch gvk := u.GroupVersionKind(); gvk.Group + "/" + gvk.Kind {
	case "/Namespace":
		err = take(u, c.namespace)
	case "/Pod":
		err = take(u, c.pod)
	case "/Node":
		err = take(u, c.node)
	case "/ServiceAccount":
		err = take(u, c.account)
	case "discovery.k8s.io/EndpointSlice":
		err = take(u, c.slice)
	case calico.Group + "/IPPool":
		err = take(u, c.pool)
	case calico.Group + "/HostEndpoint":
		b := &watch.Batch{}
		watch.Take(u, b)
		b.Apply(c.base)
	default:
		if k, err := kindOf(u); err == nil {
			c.tried[id{k, u.GetNamespace(), u.GetName()}] = u
		}
	}
	return err
}

// take reads an object as its type.
func take[T any](u *unstructured.Unstructured, f func(*T)) error {
	var o T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return fmt.Errorf("read %s: %w", objects.Describe(u), err)
	}
	f(&o)
	return nil
}

func (c *Cluster) namespace(o *corev1.Namespace) {
	if n, _ := watch.ConvertNamespace(o); n != nil {
		c.base.Namespaces[n.Name] = n
	}
}

func (c *Cluster) pod(o *corev1.Pod) {
	if p, _ := watch.ConvertPod(o); p != nil {
		c.base.Pods.Put(p)
	}
}

func (c *Cluster) node(o *corev1.Node) {
	if n, _ := watch.ConvertNode(o); n != nil {
		c.base.Nodes[n.Name] = n
	}
}

func (c *Cluster) account(o *corev1.ServiceAccount) {
	if a, _ := watch.ConvertServiceAccount(o); a != nil {
		c.base.ServiceAccounts[a.Name] = a
	}
}

func (c *Cluster) slice(o *discoveryv1.EndpointSlice) {
	if s, _ := watch.ConvertEndpointSlice(o); s != nil {
		c.base.Slices[s.Name] = s
	}
}

func (c *Cluster) pool(o *v3.IPPool) {
	if p, _ := watch.ConvertPool(o); p != nil {
		c.base.Pools[p.Name] = p
	}
}

// Now returns the cluster as it is.
func (c *Cluster) Now() *model.Cluster { return c.with(c.tried) }

// with returns the cluster with these objects.
func (c *Cluster) with(all map[id]*unstructured.Unstructured) *model.Cluster {
	b := &watch.Batch{}
	for _, u := range all {
		watch.Take(u, b)
	}
	out := *c.base
	out.Policies, out.Staged = map[model.PolicyID]*model.Policy{}, map[model.PolicyID]*model.StagedPolicy{}
	out.Tiers, out.NetworkSets = map[string]*model.Tier{}, map[model.Name]*model.NetworkSet{}
	b.Apply(&out)
	return &out
}

// Change is what is tried.
type Change struct {
	c       *Cluster
	applied []id
	after   map[id]*unstructured.Unstructured
}

// Try begins a change.
func (c *Cluster) Try() *Change { return &Change{c: c, after: maps.Clone(c.tried)} }

// Parse reads the objects of a file. Those without a namespace get this one, where their kind has
// one.
func Parse(file string, text []byte, namespace string) ([]*unstructured.Unstructured, error) {
	all, err := deploy.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no object in %s", file)
	}
	for _, u := range all {
		k, err := kindOf(u)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case u.GetName() == "":
			return nil, fmt.Errorf("%s: a %s has no metadata.name", file, k.name)
		case !k.namespaced:
			u.SetNamespace("")
		case u.GetNamespace() == "":
			u.SetNamespace(namespace)
		}
		if err := k.strict(u); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, objects.Describe(u), err)
		}
	}
	return all, nil
}

// Apply adds an object of Parse, or puts it in the place of the one that is there. It returns what
// of it would not be in force as it is written, as agents would find it.
func (x *Change) Apply(u *unstructured.Unstructured) ([]weirv1.Problem, error) {
	k, err := kindOf(u)
	if err != nil {
		return nil, err
	}
	if ns := u.GetNamespace(); k.namespaced && x.c.base.Namespaces[ns] == nil {
		return nil, fmt.Errorf("%s: there is no namespace %s", objects.Describe(u), ns)
	}
	at := id{k, u.GetNamespace(), u.GetName()}
	if was := x.c.tried[at]; was != nil { // it stays the object that it is
		u = u.DeepCopy()
		u.SetCreationTimestamp(was.GetCreationTimestamp())
	}
	x.after[at] = u
	if !slices.Contains(x.applied, at) {
		x.applied = append(x.applied, at)
	}
	return watch.Check(u), nil
}

// Delete takes out an object that is there, named as "kind/name" or "kind/namespace/name". Without
// a namespace it is this one, where the kind has one.
func (x *Change) Delete(what, namespace string) error {
	parts := strings.Split(what, "/")
	if len(parts) != 2 && len(parts) != 3 {
		return fmt.Errorf("--delete %q: want kind/name or kind/namespace/name", what)
	}
	found := findKinds(parts[0])
	if len(found) == 0 {
		return fmt.Errorf("--delete %q: %q is none of the kinds that can be tried: %s", what, parts[0], names())
	}
	for _, k := range found {
		at := id{kind: k, name: parts[len(parts)-1]}
		switch {
		case len(parts) == 3 && !k.namespaced:
			return fmt.Errorf("--delete %q: a %s is in no namespace", what, k.name)
		case len(parts) == 3:
			at.namespace = parts[1]
		case k.namespaced:
			at.namespace = namespace
		}
		if x.c.tried[at] != nil {
			if slices.Contains(x.applied, at) {
				return fmt.Errorf("--delete %q: a file applies it", what)
			}
			delete(x.after, at)
			return nil
		}
	}
	return fmt.Errorf("--delete %q: there is none", what)
}

// Model returns the cluster after the change. A staged policy that a file applies counts as if it
// were in force; those that are staged in the cluster do not.
func (x *Change) Model() *model.Cluster {
	out := x.c.with(x.after)
	staged := map[model.PolicyID]*model.StagedPolicy{}
	b := &watch.Batch{}
	for _, at := range x.applied {
		watch.Take(x.after[at], b)
	}
	for name, p := range b.Staged {
		if p != nil {
			staged[name] = p
		}
	}
	out.Policies = subject.WithStaged(out.Policies, staged)
	return out
}

// fieldManager is by which `weir apply` writes.
const fieldManager = "weir"

// applyOptions ask the API server what it would make of an object.
var applyOptions = metav1.ApplyOptions{FieldManager: fieldManager, Force: true, DryRun: []string{metav1.DryRunAll}}
