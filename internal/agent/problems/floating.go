// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"cmp"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
)

// RefusedFloating names the floating addresses that pods of this node ask for and do not have.
func RefusedFloating(refused []calc.Refusal) []weirv1.Problem {
	var out []weirv1.Problem
	for _, r := range refused {
		out = append(out, noFloating(r.Object, r.Value, r.Why))
	}
	slices.SortFunc(out, func(a, b weirv1.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Value, b.Value))
	})
	return out
}

// UngrantedFloating names those of a pod that begins which the settings and its namespace, which
// may not be known, do not let it have.
func UngrantedFloating(settings *model.Settings, namespace *model.Namespace, pod *model.Pod) []weirv1.Problem {
	var out []weirv1.Problem
	for _, a := range pod.Floating {
		if why := calc.WhyNotFloating(settings, namespace, pod.Name.Namespace, a); why != "" {
			out = append(out, noFloating("Pod "+pod.Name.String(), a.String(), why))
		}
	}
	return out
}

func noFloating(object, value, why string) weirv1.Problem {
	return weirv1.Problem{Object: object, Field: "metadata.annotations[" + model.AnnotationFloating + "]", Value: value,
		Message: "the pod is not reached by it: " + why, Action: "see floating addresses in the reference of policy, or take it out of the annotation"}.Clip()
}
