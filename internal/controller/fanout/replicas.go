// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/weir-net/weir/internal/fanout/names"
)

// isReady reports whether a pod is a replica that serves, by what nobody changes of a pod that
// exists, and by its status. Whose pod it is follows from its owner.
func isReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Spec.NodeName != "" && p.Spec.ServiceAccountName == names.Name && p.Spec.HostNetwork &&
		slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// owner is a ReplicaSet that a pod names as the one that controls it.
type owner struct {
	name string
	uid  types.UID
}

// deploymentOf returns the UID of the Deployment whose ReplicaSet controls a pod, "" where there is
// none, and notes it in owners. Labels say nothing: whoever may write those of any pod of the
// namespace would have agents connect to it.
func (c *Controller) deploymentOf(ctx context.Context, p *corev1.Pod, owners map[owner]types.UID) (types.UID, error) {
	set := metav1.GetControllerOfNoCopy(p)
	if set == nil || set.Kind != "ReplicaSet" || set.APIVersion != "apps/v1" {
		return "", nil
	}
	key := owner{name: set.Name, uid: set.UID}
	if of, ok := c.deployments[key]; ok {
		owners[key] = of
		return of, nil
	}
	have, err := c.cfg.Kube.AppsV1().ReplicaSets(c.cfg.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && have.UID != set.UID {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get ReplicaSet %s, which owns pod %s: %w", set.Name, p.Name, err)
	}
	of := metav1.GetControllerOfNoCopy(have)
	if of == nil || of.Kind != "Deployment" || of.APIVersion != "apps/v1" || of.Name != names.Name {
		return "", nil
	}
	owners[key] = of.UID
	return of.UID, nil
}

// endpoints returns the replicas' addresses of each family, in the order of pods' names, each
// address once: two replicas of one node listen in turn. What no slice may have is left out, so
// that the status of one pod keeps no other one from being known.
func endpoints(replicas []*corev1.Pod) (v4, v6 []discoveryv1.Endpoint) {
	slices.SortFunc(replicas, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	seen := map[netip.Addr]bool{}
	for _, p := range replicas {
		ips := []string{p.Status.HostIP}
		if len(p.Status.HostIPs) > 0 {
			ips = nil
			for _, h := range p.Status.HostIPs {
				ips = append(ips, h.IP)
			}
		}
		var has4, has6 bool
		for _, text := range ips {
			a, err := netip.ParseAddr(text)
			if err != nil || a.Zone() != "" || !a.Unmap().IsGlobalUnicast() {
				continue
			}
			a = a.Unmap()
			to, has := &v4, &has4
			if a.Is6() {
				to, has = &v6, &has6
			}
			if *has || seen[a] {
				continue
			}
			*has, seen[a] = true, true
			*to = append(*to, discoveryv1.Endpoint{
				Addresses: []string{a.String()}, NodeName: ptr.To(p.Spec.NodeName),
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			})
		}
	}
	return v4, v6
}

// sliceOf is the slice of a family, with how many replicas there are to be: where none is ready,
// agents see whether that is meant so. It goes with the Deployment.
func sliceOf(namespace string, deployment types.UID, endpoints []discoveryv1.Endpoint, wanted int, v6 bool) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: names.Slice,
			// No label of a Service: it is nobody's backend.
			Labels:          map[string]string{discoveryv1.LabelManagedBy: "weir-controller"},
			Annotations:     map[string]string{names.WantedAnnotation: strconv.Itoa(wanted)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: names.Name, UID: deployment}},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("fanout"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(names.Port))}},
	}
	if v6 {
		s.Name, s.AddressType = names.Slice6, discoveryv1.AddressTypeIPv6
	}
	return s
}

// write brings a slice in line. One that would have no endpoints is not made.
func (c *Controller) write(ctx context.Context, want *discoveryv1.EndpointSlice) error {
	api := c.cfg.Kube.DiscoveryV1().EndpointSlices(c.cfg.Namespace)
	have, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && len(want.Endpoints) == 0:
		return nil
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
	case err == nil:
		if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
			equality.Semantic.DeepEqual(have.Labels, want.Labels) && equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences) &&
			have.Annotations[names.WantedAnnotation] == want.Annotations[names.WantedAnnotation] {
			return nil
		}
		others := maps.Clone(have.Annotations)
		maps.Copy(others, want.Annotations)
		want.ResourceVersion, want.Annotations, want.Finalizers = have.ResourceVersion, others, have.Finalizers
		_, err = api.Update(ctx, want, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		c.soon() // somebody wrote it meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", want.Name, err)
	}
	return nil
}
