package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/lbhealth"
	"github.com/weir-net/weir/internal/dataplane"
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

// problems are those of this machine and of the configuration, and then those of objects.
func (a *Agent) problems(snap snapshot) []weirv1.Problem {
	out := slices.Clone(snap.config.Problems)
	for _, p := range a.ipam.Problems() {
		out = append(out, weirv1.Problem{Object: p.Object, Field: p.Field, Value: p.Value, Message: p.Message, Action: p.Action})
	}
	out = append(out, nodeAddressProblems(a.opts.Node, snap)...)
	st := a.driver.Status()
	out = append(out, hostProblems(snap, st.Uplinks, a.onNFTables())...)
	out = append(out, arrivalProblems(a.opts.Node, st.Arrival)...)
	out = append(out, a.metricsTLS.Problems(a.opts.Node)...)
	out = append(out, a.planes.problem(a.opts.Node, snap.config.Effective)...)
	if a.onNFTables() {
		out = append(out, a.limits.of(a.opts.Node, snap.state, dataplane.Lacks(a.driver))...)
		out = append(out, proxyProblems(a.opts.Node, a.cluster.servicesBy())...)
	}
	if len(st.Uplinks) == 0 && !a.onNFTables() {
		out = append(out, weirv1.Problem{Object: "FelixConfiguration", Field: "spec.bpfDataIfacePattern", Value: snap.config.Settings.DataIfaces,
			Message: "no interface of this node matches; nothing from outside reaches pods and Services", Action: "name the uplinks"})
	}
	out = append(out, pressure(a.opts.Node, a.driver.Pressures())...)
	if time.Since(st.Repaired) < recentRepair {
		var n uint64
		for _, r := range st.Repairs {
			n += r
		}
		out = append(out, weirv1.Problem{Object: "Node " + a.opts.Node,
			Message: fmt.Sprintf("programs, devices or routes of Weir were removed by somebody else and put back, %d times since the agent started, last at %s",
				n, st.Repaired.UTC().Format(time.RFC3339)),
			Action: "look in the agent's log for what, and stop what removes them"})
	}
	objects := slices.Concat(overlapProblems(snap.overlaps), unfitProblems(snap), claimProblems(snap.refused), refusalProblems(snap.state), overdrawnProblems(snap), snap.problems, snap.tierless)
	if c := a.serviceChecks.Load(); c != nil {
		objects = append(objects, lbhealth.Problems(a.opts.Node, c.Failing(), c.Unanswered())...)
	}
	if held, err := a.driver.Held(); err == nil {
		objects = append(objects, heldProblems(held, a.onNFTables(), a.cluster.owner)...)
	}
	if spent, err := a.driver.Spent(); err == nil {
		objects = append(objects, spentProblems(spent, a.cluster.owner)...)
	}
	return shownProblems(a.opts.Node, out, objects)
}

// shownProblems returns what a NodeStatus has of the problems: those of the node itself, then those
// of objects of the cluster, then a share of those of each namespace; and how many there are beside
// them.
func shownProblems(node string, own, objects []weirv1.Problem) []weirv1.Problem {
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
