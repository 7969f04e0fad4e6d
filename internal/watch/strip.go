// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// Prefixes of the annotations that are kept.
var keptAnnotations = []string{"cni.projectcalico.org/", "lb.projectcalico.org/", "service.kubernetes.io/", "projectcalico.org/", configHash, annotationMirror, corev1.EndpointsLastChangeTriggerTime,
	parse.PrefixQoS, parse.PrefixEgress, model.AnnotationEgressGateway, parse.AnnotationIngress, parse.AnnotationEgress, model.AnnotationSourceGrants, model.AnnotationFloatingGrants}

// strip leaves of an object what the conversions look at: the caches hold every pod of the cluster.
func strip(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
		return u, nil
	}
	if o, ok := obj.(metav1.Object); ok {
		stripMeta(o)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		return stripPod(o), nil
	case *corev1.Node:
		o.Spec = corev1.NodeSpec{Taints: leaving(o.Spec.Taints), Unschedulable: o.Spec.Unschedulable}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses, Conditions: readiness(o.Status.Conditions)}
	case *corev1.ServiceAccount:
		o.Secrets, o.ImagePullSecrets = nil, nil
	case *corev1.Namespace:
		o.Spec, o.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	}
	return obj, nil
}

// toBeDeleted is the taint of the cluster autoscaler on a node that it is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// leaving keeps the one taint that is looked at.
func leaving(taints []corev1.Taint) []corev1.Taint {
	for _, t := range taints {
		if t.Key == toBeDeleted {
			return []corev1.Taint{{Key: toBeDeleted}}
		}
	}
	return nil
}

func stripMeta(o metav1.Object) {
	o.SetManagedFields(nil)
	o.SetOwnerReferences(nil)
	o.SetFinalizers(nil)
	var kept map[string]string
	for k, v := range o.GetAnnotations() {
		for _, prefix := range keptAnnotations {
			if strings.HasPrefix(k, prefix) {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[k] = v
			}
		}
	}
	o.SetAnnotations(kept)
}

func stripPod(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: p.ObjectMeta}
	out.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, ServiceAccountName: p.Spec.ServiceAccountName, HostNetwork: p.Spec.HostNetwork}
	for _, c := range p.Spec.Containers {
		if len(c.Ports) > 0 {
			out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Ports: c.Ports})
		}
	}
	for _, c := range p.Spec.InitContainers {
		if len(c.Ports) > 0 {
			out.Spec.InitContainers = append(out.Spec.InitContainers, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	out.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
	if p.Annotations[model.AnnotationEgressGateway] != "" && parse.IsReady(p) {
		out.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return out
}

// readiness keeps the status of the condition Ready: its times change all the time.
func readiness(all []corev1.NodeCondition) []corev1.NodeCondition {
	for _, c := range all {
		if c.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}
