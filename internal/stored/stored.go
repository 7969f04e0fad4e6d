// SPDX-License-Identifier: Apache-2.0

// Package stored finds what is stored in the API and has no effect, and that no agent says: objects
// of kinds that are not supported, fields of kinds that no agent reads (package noeffect), and
// CustomResourceDefinitions that another network left. `weir status` lists it.
package stored

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/kinds"
	"github.com/weir-net/weir/internal/watch"
)

// Find returns a line for each. What may not be read is left out.
func Find(ctx context.Context, objects dynamic.Interface, groups discovery.DiscoveryInterface) ([]string, error) {
	unsupported, first := ofKinds(ctx, objects)
	fields, second := ofControllers(ctx, objects)
	left, third := leftovers(groups)
	return append(append(unsupported, fields...), left...), errors.Join(first, second, third)
}

// ofKinds lists the objects of kinds that are not supported.
func ofKinds(ctx context.Context, objects dynamic.Interface) (out []string, err error) {
	all, err := kinds.All()
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if k.InForce {
			continue
		}
		list, err := objects.Resource(k.Resource).List(ctx, metav1.ListOptions{Limit: 4})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", k.Resource.Resource, err)
		}
		if len(list.Items) == 0 {
			continue
		}
		var names []string
		for i := range list.Items {
			if i == 3 {
				names = append(names, "…")
				break
			}
			names = append(names, strings.TrimPrefix(list.Items[i].GetNamespace()+"/"+list.Items[i].GetName(), "/"))
		}
		out = append(out, fmt.Sprintf("%s %s: stored, but this kind is not supported yet; it has no effect", k.Name, strings.Join(names, ", ")))
	}
	return out, nil
}

// ofControllers names the fields without effect of the object that no agent reads.
func ofControllers(ctx context.Context, objects dynamic.Interface) (out []string, err error) {
	u, err := objects.Resource(v3.SchemeGroupVersion.WithResource("kubecontrollersconfigurations")).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get KubeControllersConfiguration default: %w", err)
	}
	for _, p := range watch.Check(u) {
		out = append(out, p.String())
	}
	return out, nil
}

// leftovers says where there are definitions of crd.projectcalico.org: clients may read these in
// the place of those that Weir acts on.
func leftovers(groups discovery.DiscoveryInterface) (out []string, err error) {
	all, err := groups.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("read the groups of the API: %w", err)
	}
	for _, g := range all.Groups {
		if g.Name == "crd.projectcalico.org" {
			out = append(out, "CustomResourceDefinitions of "+g.Name+" are left over: clients such as calicoctl may read them and show lists that are empty or old; when nothing else uses them, delete them (docs/guides/calicoctl.md)")
		}
	}
	return out, nil
}
