// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/sleep"
)

const (
	nodeDaemon  = "weir-node"
	cleanDaemon = "weir-clean-up"
)

// cleanUpDaemon is the DaemonSet that runs weir-agent clean-up on each node. It needs no network of
// pods, no right in the API, and nothing of what it removes.
func cleanUpDaemon(image string) *appsv1.DaemonSet {
	yes, no, both := true, false, corev1.MountPropagationBidirectional
	folder := corev1.HostPathDirectoryOrCreate
	labels := map[string]string{"k8s-app": cleanDaemon}
	var mounts []corev1.VolumeMount
	var volumes []corev1.Volume
	for _, v := range [][2]string{{"bpffs", "/sys/fs/bpf"}, {"cgroup", "/sys/fs/cgroup"}, {"run", "/run/weir"}, {"state", "/var/lib/weir"}, {"cni-conf", "/etc/cni/net.d"}, {"cni-bin", "/opt/cni/bin"}} {
		m := corev1.VolumeMount{Name: v[0], MountPath: v[1]}
		if v[0] == "bpffs" {
			m.MountPropagation = &both
		}
		mounts = append(mounts, m)
		volumes = append(volumes, corev1.Volume{Name: v[0], VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v[1], Type: &folder}}})
	}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: cleanDaemon, Namespace: deploy.Namespace, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				HostNetwork: true, DNSPolicy: corev1.DNSDefault, PriorityClassName: "system-node-critical", AutomountServiceAccountToken: &no,
				NodeSelector: map[string]string{"kubernetes.io/os": "linux"}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				InitContainers: []corev1.Container{{Name: "clean-up", Image: image, Command: []string{"/weir-agent", "clean-up"}, VolumeMounts: mounts,
					SecurityContext: &corev1.SecurityContext{Privileged: &yes, ReadOnlyRootFilesystem: &yes}}},
				Containers: []corev1.Container{{Name: "done", Image: image, Command: []string{"/weir-agent", "clean-up", "--done"},
					SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes}}},
				Volumes: volumes,
			}},
		},
	}
}

// imageOf is that of the agents.
func imageOf(ctx context.Context, kube kubernetes.Interface) (string, error) {
	ds, err := kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, nodeDaemon, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no DaemonSet %s/%s whose image could clean nodes up: name one by --image, or run weir-agent clean-up on each node", deploy.Namespace, nodeDaemon)
	}
	if err != nil {
		return "", fmt.Errorf("get DaemonSet %s/%s: %w", deploy.Namespace, nodeDaemon, err)
	}
	return ds.Spec.Template.Spec.Containers[0].Image, nil
}

// onOther returns the CNI plugin that Weir works with in the cluster (weir install --on), empty
// where that is Weir's own.
func onOther(ctx context.Context, kube kubernetes.Interface) (string, error) {
	ds, err := kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, nodeDaemon, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get DaemonSet %s/%s: %w", deploy.Namespace, nodeDaemon, err)
	}
	return networkOf(ds), nil
}

// networkOf is the CNI plugin that agents of this DaemonSet work with, empty where it is Weir's
// own.
func networkOf(ds *appsv1.DaemonSet) string {
	for _, c := range ds.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == "FELIX_CNICHAINING" {
				return e.Value
			}
		}
	}
	return ""
}

// cleanNodes runs weir-agent clean-up on each node, and waits until it is done everywhere. The
// DaemonSet of the agents is gone by then, or going.
func cleanNodes(ctx context.Context, out io.Writer, kube kubernetes.Interface, image string, timeout time.Duration) error {
	sets := kube.AppsV1().DaemonSets(deploy.Namespace)
	if _, err := sets.Create(ctx, cleanUpDaemon(image), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create DaemonSet %s: %w", cleanDaemon, err)
	}
	waiting, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	var last appsv1.DaemonSetStatus
	for {
		ds, err := sets.Get(waiting, cleanDaemon, metav1.GetOptions{})
		if err == nil {
			last = ds.Status
			if last.ObservedGeneration >= ds.Generation && last.ObservedGeneration > 0 && last.NumberReady == last.DesiredNumberScheduled {
				break
			}
		}
		if err := sleep.For(waiting, time.Second); err != nil {
			return errors.Join(fmt.Errorf("%d of %d nodes are clean; DaemonSet %s is still there and goes on with the others: kubectl -n %s get pods -l k8s-app=%s; "+
				"delete it when they are done, or repeat the command; weir install deletes it too",
				last.NumberReady, last.DesiredNumberScheduled, cleanDaemon, deploy.Namespace, cleanDaemon), err)
		}
	}
	if err := sets.Delete(ctx, cleanDaemon, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete DaemonSet %s: %w", cleanDaemon, err)
	}
	fmt.Fprintf(out, "Nothing of Weir is left on %d nodes. Pods to which Weir gave a network have none until they are started by another one.\n", last.NumberReady)
	return nil
}

// endCleanUp deletes what a clean-up that was interrupted left, and waits until its pods are gone:
// they would go on to remove what agents make, from nodes that come back too.
func endCleanUp(ctx context.Context, out io.Writer, kube kubernetes.Interface) error {
	propagation := metav1.DeletePropagationForeground
	switch err := kube.AppsV1().DaemonSets(deploy.Namespace).Delete(ctx, cleanDaemon, metav1.DeleteOptions{PropagationPolicy: &propagation}); {
	case err == nil:
		fmt.Fprintf(out, "removed DaemonSet %s/%s, which an uninstallation left\n", deploy.Namespace, cleanDaemon)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("remove DaemonSet %s: %w", cleanDaemon, err)
	}
	for {
		pods, err := kube.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=" + cleanDaemon})
		if err == nil && len(pods.Items) == 0 {
			return nil
		}
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("look for pods of %s: %w", cleanDaemon, err)
		}
		if err := sleep.For(ctx, 500*time.Millisecond); err != nil {
			var nodes []string
			if pods != nil {
				for i := range pods.Items {
					nodes = append(nodes, pods.Items[i].Spec.NodeName)
				}
			}
			return fmt.Errorf("pods of %s are still on nodes %s, and remove what is installed there: %w; of nodes that are gone for good, remove the Node", cleanDaemon, strings.Join(nodes, ", "), err)
		}
	}
}

// releaseFinalizers takes the controller's finalizers off all tiers and pools: without a controller
// one that is deleted would stay for ever, and with it its definition.
func releaseFinalizers(ctx context.Context, d dynamic.Interface) error {
	tiers := schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "tiers"}
	for resource, finalizer := range map[schema.GroupVersionResource]string{tiers: deploy.TierFinalizer, poolResource: deploy.PoolFinalizer} {
		list, err := d.Resource(resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for i := range list.Items {
			name := list.Items[i].GetName()
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				u, err := d.Resource(resource).Get(ctx, name, metav1.GetOptions{})
				if err != nil || !slices.Contains(u.GetFinalizers(), finalizer) {
					return err
				}
				u.SetFinalizers(slices.DeleteFunc(u.GetFinalizers(), func(f string) bool { return f == finalizer }))
				_, err = d.Resource(resource).Update(ctx, u, metav1.UpdateOptions{})
				return err
			})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("take the finalizer off %s %s: %w", resource.Resource, name, err)
			}
		}
	}
	return nil
}
