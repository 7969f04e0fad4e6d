// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Put writes objects that are not there yet: Namespaces, Nodes, Pods, NetworkPolicies, and objects
// of custom resources, which are unstructured. What the API server would fill in (identifiers,
// times, defaults) has to be there. say is called with how many are done, now and then.
func (s *Store) Put(ctx context.Context, objects iter.Seq[runtime.Object], say func(done int)) error {
	var puts []put
	done, reported := 0, time.Now()
	flush := func() error {
		if len(puts) == 0 {
			return nil
		}
		if err := s.write(ctx, puts); err != nil {
			return fmt.Errorf("writing objects into etcd: %w", err)
		}
		done, puts = done+len(puts), puts[:0]
		if say != nil && time.Since(reported) > 10*time.Second {
			reported = time.Now()
			say(done)
		}
		return nil
	}
	for o := range objects {
		p, err := stored(o)
		if err != nil {
			return err
		}
		if puts = append(puts, p); len(puts) == transaction {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// removal is an entry that is removed, as the gateway's JSON has it.
type removal struct {
	Request struct {
		Key []byte `json:"key"`
	} `json:"requestDeleteRange"`
}

// RemovePolicies removes NetworkPolicies; one that is not there is none that is left.
func (s *Store) RemovePolicies(ctx context.Context, policies iter.Seq[types.NamespacedName]) error {
	var all []removal
	for p := range policies {
		var r removal
		r.Request.Key = []byte("/registry/networkpolicies/" + p.Namespace + "/" + p.Name)
		all = append(all, r)
	}
	for some := range slices.Chunk(all, transaction) {
		if err := s.write(ctx, some); err != nil {
			return fmt.Errorf("removing policies from etcd: %w", err)
		}
	}
	return nil
}

// stored is the entry of an object: protobuf, or JSON where it is one of a custom resource.
func stored(o runtime.Object) (put, error) {
	core := func(resource, namespace, name string, gv schema.GroupVersion) (put, error) {
		if namespace != "" {
			name = namespace + "/" + name
		}
		return entry(resource+"/"+name, o, gv)
	}
	switch v := o.(type) {
	case *corev1.Namespace:
		return core("namespaces", "", v.Name, corev1.SchemeGroupVersion)
	case *corev1.Node:
		return core("minions", "", v.Name, corev1.SchemeGroupVersion)
	case *corev1.Pod:
		return core("pods", v.Namespace, v.Name, corev1.SchemeGroupVersion)
	case *networkingv1.NetworkPolicy:
		return core("networkpolicies", v.Namespace, v.Name, networkingv1.SchemeGroupVersion)
	case *unstructured.Unstructured:
		if v.GetNamespace() != "" {
			return put{}, fmt.Errorf("%s %s/%s: only cluster-wide custom resources are written", v.GetKind(), v.GetNamespace(), v.GetName())
		}
		text, err := json.Marshal(v.Object)
		if err != nil {
			return put{}, fmt.Errorf("encoding %s %s: %w", v.GetKind(), v.GetName(), err)
		}
		gvk := v.GroupVersionKind()
		var p put
		p.Request.Key = []byte("/registry/" + gvk.Group + "/" + strings.ToLower(gvk.Kind) + "s/" + v.GetName())
		p.Request.Value = text
		return p, nil
	}
	return put{}, fmt.Errorf("objects of type %T are not written", o)
}
