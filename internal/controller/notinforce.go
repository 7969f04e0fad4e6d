// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/watch"
)

// few are the kinds whose objects are read at each look, many those whose are at every
// everyRounds-th.
var (
	few  = []string{"felixconfigurations", "kubecontrollersconfigurations", "ippools", "ipreservations", "ipamconfigurations", "bgpconfigurations", "bgppeers", "bgpfilters", "egressgatewaypolicies", "hostendpoints", "tiers"}
	many = []string{"networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies", "stagedkubernetesnetworkpolicies", "networksets", "globalnetworksets"}
)

// notInForce is what was said of objects, by UID, and how many looks there were.
type notInForce struct {
	said  map[types.UID]string
	looks int
}

// reportNotInForce writes an event for each object that is not in force as it is written, once for
// what is said of it. It is found by the code with which agents read objects.
func (c *Controller) reportNotInForce(ctx context.Context) error {
	all := c.notInForce.looks%everyRounds == 0
	c.notInForce.looks++
	resources := few
	if all {
		resources = append(resources[:len(resources):len(resources)], many...)
	}
	left, there := maxEvents, map[types.UID]bool{}
	var errs []error
	for _, name := range resources {
		errs = append(errs, pages(func(o metav1.ListOptions) (string, error) {
			list, err := c.cfg.Dynamic.Resource(v3.SchemeGroupVersion.WithResource(name)).List(ctx, o)
			if apierrors.IsNotFound(err) {
				return "", nil // the definitions are older than this program
			}
			if err != nil {
				return "", fmt.Errorf("list %s: %w", name, err)
			}
			for i := range list.Items {
				there[list.Items[i].GetUID()] = true
				if err := c.sayNotInForce(ctx, &list.Items[i], &left); err != nil {
					errs = append(errs, err)
				}
			}
			return list.GetContinue(), nil
		}))
	}
	err := errors.Join(errs...)
	if all && err == nil {
		maps.DeleteFunc(c.notInForce.said, func(uid types.UID, _ string) bool { return !there[uid] })
	}
	return err
}

// sayNotInForce writes an event about an object where something else is to be said than before, and
// some are left to be written.
func (c *Controller) sayNotInForce(ctx context.Context, u *unstructured.Unstructured, left *int) error {
	text := partsNotInForce(u)
	if c.notInForce.said[u.GetUID()] == text || text != "" && *left == 0 {
		return nil
	}
	if text != "" {
		*left--
		about := corev1.ObjectReference{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(),
			UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}
		if err := c.warn(ctx, about, weirv1.ReasonNotInForce, text); err != nil {
			return err
		}
	}
	c.notInForce.said[u.GetUID()] = text
	return nil
}

// partsNotInForce says what of an object has no effect, "" where all has.
func partsNotInForce(u *unstructured.Unstructured) string {
	var words []string
	problems := watch.Check(u)
	if u.GetKind() == v3.KindFelixConfiguration {
		node := strings.TrimPrefix(u.GetName(), config.OfNode(""))
		r := config.New(node, nil, nil)
		spec, _, err := unstructured.NestedMap(u.Object, "spec")
		if err != nil || !r.Set(u.GetName(), spec) {
			return "only the FelixConfigurations default and node.NAME have an effect"
		}
		found := r.Resolve()
		problems = append(problems, found.Problems...)
		for _, line := range found.Unsupported {
			words = append(words, strings.TrimPrefix(line, u.GetKind()+" "+u.GetName()+" "))
		}
	}
	for _, p := range problems {
		words = append(words, p.WithoutObject())
	}
	return eventText(strings.Join(words, "; "))
}
