// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"cmp"
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// RefusedSources names the prefixes from which pods of this node ask to send and may not, by a
// state that follows from the cluster.
func RefusedSources(c *model.Cluster, s *nodestate.State) []weirv1.Problem {
	var out []weirv1.Problem
	seen := map[model.Name]bool{}
	for _, ep := range c.Local.Endpoints {
		if !seen[ep.Pod] {
			seen[ep.Pod] = true
			out = append(out, ungranted(&c.Settings, c.Namespaces[ep.Pod.Namespace], s, ep.Pod, c.Pods.Sources(ep.Pod))...)
		}
	}
	slices.SortFunc(out, func(a, b weirv1.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Value, b.Value))
	})
	return out
}

// UngrantedSources names those of a pod that begins, by the settings and its namespace, which may
// not be known.
func UngrantedSources(settings *model.Settings, namespace *model.Namespace, pod *model.Pod) []weirv1.Problem {
	return ungranted(settings, namespace, nil, pod.Name, pod.Sources)
}

func ungranted(settings *model.Settings, namespace *model.Namespace, s *nodestate.State, pod model.Name, asked []netip.Prefix) []weirv1.Problem {
	var out []weirv1.Problem
	for _, p := range asked {
		if why, action := whyNoSource(settings, namespace, s, pod, p); why != "" {
			out = append(out, weirv1.Problem{Object: "Pod " + pod.String(), Field: "metadata.annotations[" + model.AnnotationSources + "]", Value: p.String(),
				Message: "the pod does not send from it: " + why, Action: action}.Clip())
		}
	}
	return out
}

func whyNoSource(settings *model.Settings, namespace *model.Namespace, s *nodestate.State, pod model.Name, p netip.Prefix) (why, action string) {
	switch {
	case settings.Chained:
		return "another CNI plugin connects the pod, and says what it sends", "take the annotation away"
	case !settings.SourceSpoofing:
		return "workloadSourceSpoofing is not Any", "set workloadSourceSpoofing: Any in FelixConfiguration default, or take the annotation away"
	case !namespace.Grants(p):
		return "the annotation " + model.AnnotationSourceGrants + " of namespace " + pod.Namespace + " does not grant it", "let an administrator of the namespace's object grant it, or take it out of the annotation"
	case s == nil:
		return "", ""
	}
	if _, whole := s.SourceParts(p); whole {
		return "pods, Services or nobody at all may have it", "take it out of the annotation"
	}
	for _, a := range s.Addrs {
		if a.Kind == nodestate.AddrEndpoint && a.Owner == pod && a.Gateways {
			return "the pod leaves the cluster by egress gateways", "take one of the annotations away"
		}
	}
	return "", ""
}
