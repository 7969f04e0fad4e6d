// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cordoned marks a node that was cordoned to be changed, not by its owner.
const cordoned = "weir.dev/cordoned-to-change"

// Cordoned reports whether a node is cordoned since its change began, and not yet at its end.
func Cordoned(n *corev1.Node) bool { return n.Annotations[cordoned] != "" }

// cordon has no pod be scheduled on a node.
func (c *Change) cordon(ctx context.Context, n *corev1.Node) error {
	if n.Spec.Unschedulable {
		return nil
	}
	return c.patchNode(ctx, n.Name, `{"metadata":{"annotations":{"`+cordoned+`":"true"}},"spec":{"unschedulable":true}}`)
}

// uncordon ends what cordon began.
func (c *Change) uncordon(ctx context.Context, name string) error {
	n, err := c.Clients.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look at node %s: %w", name, err)
	}
	if n.Annotations[cordoned] == "" {
		return nil
	}
	return c.patchNode(ctx, name, `{"metadata":{"annotations":{"`+cordoned+`":null}},"spec":{"unschedulable":null}}`)
}

func (c *Change) patchNode(ctx context.Context, name, patch string) error {
	if _, err := c.Clients.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: Manager}); err != nil {
		return fmt.Errorf("change node %s: %w", name, err)
	}
	return nil
}

// networked are the pods of a node that have a network of their own and are not at their end.
func (c *Change) networked(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := c.Clients.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("look for the pods of node %s: %w", node, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), nil
}

// ofDaemonSet reports whether a pod is one of a DaemonSet, which are made again wherever they were.
func ofDaemonSet(p *corev1.Pod) bool {
	o := metav1.GetControllerOf(p)
	return o != nil && o.Kind == "DaemonSet"
}

// drain evicts the pods of a node that have a network of their own, but for those of DaemonSets,
// and waits until they have ended. Others need not go: their network is the node's. A pod without a
// controller stops it, unless force says that such pods may be lost.
func (c *Change) drain(ctx context.Context, node string, force bool) error {
	pods, err := c.networked(ctx, node)
	if err != nil {
		return err
	}
	var alone []string
	for i := range pods {
		if metav1.GetControllerOf(&pods[i]) == nil {
			alone = append(alone, pods[i].Namespace+"/"+pods[i].Name)
		}
	}
	if len(alone) > 0 && !force {
		slices.Sort(alone)
		return fmt.Errorf("node %s has pods without a controller, which nobody makes again: %s; delete them, or say --force", node, strings.Join(alone, ", "))
	}
	return c.await(ctx, node+": its pods have ended", func(ctx context.Context) error { return c.evict(ctx, node) })
}

// evict asks for the eviction of a node's pods. It is an error while some are there.
func (c *Change) evict(ctx context.Context, node string) error {
	pods, err := c.networked(ctx, node)
	if err != nil {
		return err
	}
	var left error
	for i := range pods {
		p := &pods[i]
		if ofDaemonSet(p) {
			continue
		}
		if left == nil {
			left = fmt.Errorf("pod %s/%s is there", p.Namespace, p.Name)
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		err := c.Clients.Kube.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}})
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		case apierrors.IsTooManyRequests(err): // a PodDisruptionBudget asks to wait; others need not
			left = fmt.Errorf("pod %s/%s may not be evicted yet: %w", p.Namespace, p.Name, err)
		case err != nil:
			return fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return left
}

// renew has pods of a node that were started with another network made again: all that are there
// now, which are those of DaemonSets.
func (c *Change) renew(ctx context.Context, node string) error {
	pods, err := c.networked(ctx, node)
	if err != nil {
		return err
	}
	for i := range pods {
		p := &pods[i]
		err := c.Clients.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("have pod %s/%s made again: %w", p.Namespace, p.Name, err)
		}
	}
	return c.await(ctx, fmt.Sprintf("%s: %d pods of DaemonSets are made again", node, len(pods)), func(ctx context.Context) error {
		now, err := c.networked(ctx, node)
		if err == nil && len(now) < len(pods) {
			err = fmt.Errorf("%d of %d are there", len(now), len(pods))
		}
		for i := range now {
			if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == now[i].UID }) {
				return fmt.Errorf("pod %s/%s is there", now[i].Namespace, now[i].Name)
			}
			if now[i].Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s/%s is %s", now[i].Namespace, now[i].Name, now[i].Status.Phase)
			}
		}
		return err
	})
}
