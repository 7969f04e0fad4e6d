// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// group is a set of specs that run together in one lab.
type group struct {
	Name string
	// Match says which specs belong here; a spec goes to the first group that matches.
	Match *regexp.Regexp
	// Workers is the number of worker nodes of the lab, Zones the number of zones they are spread
	// over.
	Workers, Zones int
	// Dual labs have both address families.
	Dual bool
	// Plain labs get nothing alongside Weir: no zones, no client far away, no servers outside.
	Plain bool
	// Procs is the number of parallel processes, 0 for what the command line says.
	Procs int
	// Alongside groups run at the same time as the next one in their lab: their specs wait more
	// than they work.
	Alongside bool
}

// shape is what decides whether groups can share a lab.
type shape struct {
	workers, zones int
	dual, plain    bool
}

func (g group) shape() shape { return shape{g.Workers, g.Zones, g.Dual, g.Plain} }

// whole is everything that `make e2e` runs.
var whole = []group{
	// Restarts, and 10,000 Services: one after the other, with nothing alongside them.
	{Name: "alone", Match: regexp.MustCompile(`\[Disruptive\]|\[Feature:PerformanceDNS\]`), Workers: 3, Zones: 3, Procs: 1},
	// Three zones of two nodes each.
	{Name: "zones", Match: regexp.MustCompile(`Traffic Distribution should route traffic (correctly between pods on multiple nodes|to an endpoint on the same node or fall back to same zone)`),
		Workers: 6, Zones: 3},
	// One node answers for an address on its subnet, and with policy Local it chooses among its own
	// backends. The spec wants to see several where affinity is off: so all of them are on this
	// node.
	{Name: "single", Match: regexp.MustCompile(`switch session affinity for LoadBalancer service with Local traffic policy`), Workers: 1, Zones: 1},
	// Each makes nine pods, and asks a hundred or more connections of them again and again.
	{Name: "netpol", Match: regexp.MustCompile(`NetworkPolicy between server and client`), Workers: 3, Zones: 3, Procs: 4},
	// What is about two families.
	{Name: "dual", Match: regexp.MustCompile(`\[Feature:(IPv6DualStack|Networking-IPv6)\]`), Workers: 2, Zones: 2, Dual: true},
	// Five minutes to a quarter of an hour each, nearly all of it waiting: for pods that take their
	// time to end, and for connections that nobody answers.
	{Name: "long", Match: regexp.MustCompile(strings.Join([]string{`should not have connectivity disruption during rolling update`,
		`should only allow access from service loadbalancer source ranges`, `affinity timeout work for service with type clusterIP`}, "|")),
		Workers: 3, Zones: 3, Procs: 4, Alongside: true},
	{Name: "main", Match: regexp.MustCompile(``), Workers: 3, Zones: 3},
}

// conformance is what `make test` runs: the conformance specs, and others that take little and need
// nothing but nodes and pods, so that each part of Services that has a spec has one there.
var conformance = []group{
	{Name: "conformance", Match: regexp.MustCompile(`\[Conformance\]|` + strings.Join([]string{
		`internalTrafficPolicy=Local Pod`, `externalTrafficPolicy=Local for type=NodePort`, `no ready endpoints with (in|ex)ternall?TrafficPolicy=Local`,
		`rejected when no endpoints exist`, `hairpin back`, `Services should be able to handle large requests`,
		`should check kube-proxy urls`, `traffic between Pods without SNAT`, `named targetPorts that resolve`, `service.kubernetes.io/(headless|service-proxy-name)`,
	}, "|")), Workers: 2, Plain: true, Procs: 4},
}

// task is a group with the specs that it runs.
type task struct {
	group
	Specs []string
}

// labs puts tasks that can share a lab together, in the order in which the first of each comes. In
// a lab those that run alongside others begin, and those with one process, which may break things
// for a while, end.
func labs(tasks []task) [][]task {
	var out [][]task
	for _, t := range tasks {
		i := slices.IndexFunc(out, func(l []task) bool { return l[0].shape() == t.shape() })
		if i < 0 {
			out = append(out, []task{t})
			continue
		}
		out[i] = append(out[i], t)
	}
	rank := func(t task) int {
		switch {
		case t.Alongside:
			return 0
		case t.Procs == 1:
			return 2
		}
		return 1
	}
	for _, l := range out {
		slices.SortStableFunc(l, func(a, b task) int { return rank(a) - rank(b) })
	}
	return out
}

// divide gives each spec to the first group that matches it. Specs that no group matches are
// returned apart.
func divide(groups []group, specs []string) (tasks []task, rest []string) {
	tasks = make([]task, len(groups))
	for i, g := range groups {
		tasks[i].group = g
	}
next:
	for _, s := range specs {
		for i, g := range groups {
			if g.Match.MatchString(s) {
				tasks[i].Specs = append(tasks[i].Specs, s)
				continue next
			}
		}
		rest = append(rest, s)
	}
	return tasks, rest
}

// narrow keeps what the focus and the list of groups of the command line leave.
func narrow(tasks []task, focus *regexp.Regexp, names []string) ([]task, error) {
	for _, n := range names {
		if !slices.ContainsFunc(tasks, func(t task) bool { return t.Name == n }) {
			return nil, fmt.Errorf("there is no group %q", n)
		}
	}
	var out []task
	for _, t := range tasks {
		if len(names) > 0 && !slices.Contains(names, t.Name) {
			continue
		}
		var specs []string
		for _, s := range t.Specs {
			if focus.MatchString(s) {
				specs = append(specs, s)
			}
		}
		if t.Specs = specs; len(specs) > 0 {
			out = append(out, t)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no spec is left to run")
	}
	return out, nil
}
