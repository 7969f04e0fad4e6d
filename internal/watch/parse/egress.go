// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// PrefixEgress begins the annotations of pods and namespaces that name egress gateways.
const PrefixEgress = "egress.projectcalico.org/"

// nothingLeaves is what becomes of a client of which cannot be read by which gateways it leaves.
const nothingLeaves = "nothing leaves the cluster"

// Egress reads the annotations of a pod or a namespace that name egress gateways; nil = none does.
// What cannot be read is reported and kept: it selects no gateway, so that nothing leaves by
// another way than was asked for.
func (f *Finding) Egress(annotations map[string]string) *model.EgressClient {
	out := model.EgressClient{Selector: annotations[model.AnnotationEgressSelector], Namespaces: annotations[model.AnnotationEgressNamespaces], Policy: annotations[model.AnnotationEgressPolicy]}
	if out == (model.EgressClient{}) {
		return nil
	}
	f.selector(model.AnnotationEgressSelector, out.Selector)
	f.selector(model.AnnotationEgressNamespaces, out.Namespaces)
	return &out
}

func (f *Finding) selector(annotation, text string) {
	if text == "" {
		return
	}
	if _, err := selector.Parse(text); err != nil {
		f.Add(annotationName(annotation), text, err.Error(), nothingLeaves)
	}
}

// EgressClients reads the annotation of a namespace that says whose pods may leave by its gateways.
func (f *Finding) EgressClients(annotations map[string]string) string {
	text := annotations[model.AnnotationEgressClients]
	if _, err := selector.Parse(text); err != nil {
		f.Add(annotationName(model.AnnotationEgressClients), text, err.Error(), "no pod may leave by its egress gateways")
		return ""
	}
	return text
}

// EgressGateway returns what a pod is as an egress gateway; nil = it is none.
func (f *Finding) EgressGateway(p *corev1.Pod) *model.EgressGateway {
	switch text := p.Annotations[model.AnnotationEgressGateway]; text {
	case "", "false":
		return nil
	case "true":
	default:
		f.Add(annotationName(model.AnnotationEgressGateway), text, `neither "true" nor "false"`, "the pod is no egress gateway")
		return nil
	}
	return &model.EgressGateway{Ready: IsReady(p) && p.DeletionTimestamp == nil, Labels: maps.Clone(p.Labels)}
}

// IsReady reports whether a pod's condition Ready is True.
func IsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}
