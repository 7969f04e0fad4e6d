// SPDX-License-Identifier: Apache-2.0

// Package problems lists what is not in force on a node as it is written: of the machine, of the
// configuration, and of objects that the state of the node refuses. Each function takes plain
// values and returns entries of a NodeStatus, with what to do about them. Shown chooses which of
// them a NodeStatus has room for: tenants make as many objects as they like, and what is wrong with
// the node has to be seen in any case.
package problems

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// Bounds of the problems of a NodeStatus. Tenants make as many objects as they like, and write what
// they like into them: what is wrong with the node has to be seen in any case, and a NodeStatus
// that is too large is not stored at all.
const (
	maxProblems             = 100 // as the definition of NodeStatus has it
	maxProblemBytes         = 48 << 10
	maxNamespaced           = 30 // of objects in namespaces, all together
	maxNamespacedOfEachName = 5  // of the objects of one namespace
)

// Shown returns what a NodeStatus has of the problems: those of the node itself, then those of
// objects of the cluster, then a share of those of each namespace; and how many there are besides.
func Shown(node string, own, objects []weirv1.Problem) []weirv1.Problem {
	var cluster, namespaced []weirv1.Problem
	for _, p := range objects {
		if namespaceOf(p.Object) == "" {
			cluster = append(cluster, p)
		} else {
			namespaced = append(namespaced, p)
		}
	}
	total := len(own) + len(cluster) + len(namespaced)
	var out []weirv1.Problem
	bytes := 0
	for _, p := range slices.Concat(own, cluster, sharedProblems(namespaced)) {
		p = p.Clip()
		text, err := json.Marshal(p)
		if err != nil {
			panic(err) // strings
		}
		if len(out) == maxProblems-1 && total > maxProblems || bytes+len(text) > maxProblemBytes {
			break
		}
		bytes += len(text) + 1
		out = append(out, p)
	}
	if n := total - len(out); n > 0 {
		out = append(out, weirv1.Problem{Object: "Node " + node, Message: fmt.Sprintf("%d more problems are not shown: of objects in namespaces there are at most %d, %d of one namespace",
			n, maxNamespaced, maxNamespacedOfEachName)})
	}
	return out
}

// sharedProblems takes in turns one of each namespace, in the order of all.
func sharedProblems(all []weirv1.Problem) []weirv1.Problem {
	type turn struct{ at, round int }
	seen := map[string]int{}
	var turns []turn
	for i, p := range all {
		ns := namespaceOf(p.Object)
		if seen[ns]++; seen[ns] <= maxNamespacedOfEachName {
			turns = append(turns, turn{i, seen[ns]})
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return a.round - b.round })
	turns = turns[:min(len(turns), maxNamespaced)]
	slices.SortFunc(turns, func(a, b turn) int { return a.at - b.at })
	var out []weirv1.Problem
	for _, t := range turns {
		out = append(out, all[t.at])
	}
	return out
}

// namespaceOf returns the namespace of what a problem is about ("Service shop/web", "Namespace
// shop", "Policies NetworkPolicy shop/a, …"), "" for objects of the cluster and for files.
func namespaceOf(object string) string {
	if ns, ok := strings.CutPrefix(object, "Namespace "); ok {
		return ns
	}
	before, _, _ := strings.Cut(object, "/")
	if before == object {
		return ""
	}
	return before[strings.LastIndexByte(before, ' ')+1:]
}
