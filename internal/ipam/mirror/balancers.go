// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/ipam"
)

const (
	// balancersLabel is on the objects that show addresses of load balancers.
	balancersLabel = "weir.dev/load-balancers"
	// maxBalancerWrites bounds what ShowBalancers writes at a time.
	maxBalancerWrites = 100
)

// balancerKinds in the order in which they are written: a client finds a handle for what it finds
// in a block.
var balancerKinds = []struct {
	resource schema.GroupVersionResource
	kind     string
}{{ipamv3.IPAMHandles, "IPAMHandle"}, {ipamv3.BlockAffinities, "BlockAffinity"}, {ipamv3.IPAMBlocks, "IPAMBlock"}}

// ShowBalancers writes what clients of projectcalico.org/v3 see of the addresses of load balancers,
// after the blocks that have these: an IPAMBlock and a BlockAffinity for each, and an IPAMHandle
// for each Service, named as Calico names them. Of what is left after maxBalancerWrites the next
// call writes some more.
func ShowBalancers(ctx context.Context, api dynamic.Interface, blocks []weirv1.IPAMBlock) error {
	want, err := balancerObjects(blocks)
	if err != nil {
		return err
	}
	var errs []error
	writes := 0
	wrote := func(what string, u *unstructured.Unstructured, err error) {
		writes++
		// What changed or went meanwhile is found as it is then by the next call.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s %s %s: %w", what, u.GetKind(), u.GetName(), err))
		}
	}
	var gone []func()
	for _, k := range balancerKinds {
		of := api.Resource(k.resource)
		list, err := of.List(ctx, metav1.ListOptions{LabelSelector: balancersLabel})
		if apierrors.IsNotFound(err) {
			continue // the definitions are older than this program
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list %s: %w", k.resource.Resource, err))...)
		}
		have := map[string]*unstructured.Unstructured{}
		for i := range list.Items {
			have[list.Items[i].GetName()] = &list.Items[i]
		}
		for _, name := range slices.Sorted(maps.Keys(want[k.kind])) {
			u, old := want[k.kind][name], have[name]
			delete(have, name)
			switch {
			case old != nil && sameJSON(old.Object["spec"], u.Object["spec"]) && equality.Semantic.DeepEqual(old.GetOwnerReferences(), u.GetOwnerReferences()):
			case writes >= maxBalancerWrites:
			case old != nil:
				u.SetResourceVersion(old.GetResourceVersion())
				_, err := of.Update(ctx, u, metav1.UpdateOptions{})
				wrote("update", u, err)
			default:
				_, err := of.Create(ctx, u, metav1.CreateOptions{})
				wrote("create", u, err)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			gone = append(gone, func() {
				wrote("delete", have[name], of.Delete(ctx, name, metav1.DeleteOptions{}))
			})
		}
	}
	for _, remove := range slices.Backward(gone) { // blocks before the handles in them
		if writes < maxBalancerWrites {
			remove()
		}
	}
	return errors.Join(errs...)
}

// balancerObjects are what is to be there, by kind and name. The blocks of weir.dev own them.
func balancerObjects(blocks []weirv1.IPAMBlock) (map[string]map[string]*unstructured.Unstructured, error) {
	out := map[string]map[string]*unstructured.Unstructured{"IPAMHandle": {}, "BlockAffinity": {}, "IPAMBlock": {}}
	counts := map[string]*ipamv3.IPAMHandleSpec{}
	owners := map[string][]metav1.OwnerReference{}
	sorted := slices.SortedFunc(slices.Values(blocks), func(a, b weirv1.IPAMBlock) int { return strings.Compare(a.Name, b.Name) })
	for i := range sorted {
		o := &sorted[i]
		b, ok := ipam.ConvertBlock(o)
		if !ok || o.Spec.Node != weirv1.LoadBalancers || o.DeletionTimestamp != nil {
			continue
		}
		owner := []metav1.OwnerReference{{APIVersion: weirv1.GroupVersion.String(), Kind: "IPAMBlock", Name: o.Name, UID: o.UID}}
		all := make([]allocation, 0, len(b.Services))
		for _, s := range b.Services {
			handle := serviceHandle(s)
			all = append(all, allocation{address: s.Address, handle: handle, of: map[string]string{"namespace": s.Service.Namespace, "service": s.Service.Name, "type": "LoadBalancer"}})
			if counts[handle] == nil {
				counts[handle] = &ipamv3.IPAMHandleSpec{HandleID: handle, Block: map[string]int{}}
			}
			if counts[handle].Block[b.CIDR.String()]++; counts[handle].Block[b.CIDR.String()] == 1 {
				owners[handle] = append(owners[handle], owner...)
			}
		}
		typ, node, _ := strings.Cut(weirv1.LoadBalancers, ":")
		for name, spec := range map[string]any{"IPAMBlock": render(weirv1.LoadBalancers, b.CIDR, all),
			"BlockAffinity": map[string]any{"state": "confirmed", "node": node, "type": typ, "cidr": b.CIDR.String()}} {
			object := clientName(b.CIDR)
			if name == "BlockAffinity" {
				object = node + "-" + object
			}
			u, err := balancerObject(name, object, owner, spec)
			if err != nil {
				return nil, err
			}
			out[name][object] = u
		}
	}
	for handle, spec := range counts {
		name := strings.ToLower(handle)
		u, err := balancerObject("IPAMHandle", name, owners[handle], spec)
		if err != nil {
			return nil, err
		}
		out["IPAMHandle"][name] = u
	}
	return out, nil
}

func balancerObject(kind, name string, owners []metav1.OwnerReference, spec any) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("write %s %s: %w", kind, name, err)
	}
	var of map[string]any
	if err := json.Unmarshal(text, &of); err != nil {
		return nil, fmt.Errorf("write %s %s: %w", kind, name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": ipamv3.GroupVersion.String(), "kind": kind, "spec": of}}
	u.SetName(name)
	u.SetLabels(map[string]string{balancersLabel: ""})
	u.SetOwnerReferences(owners)
	return u, nil
}

// serviceHandle is the handle under which Calico allocates the addresses of a Service.
func serviceHandle(s ipam.ServiceAddress) string {
	sum := sha256.Sum256([]byte(strings.ToLower(s.Service.Name + "-" + s.Service.Namespace + "-" + s.UID)))
	return "lb-" + strings.NewReplacer("-", "", "_", "").Replace(base64.RawURLEncoding.EncodeToString(sum[:]))
}
