// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

// testDef is a test that paths are measured by.
type testDef struct {
	name, title string
	group       string // bandwidth, latency, rates, control
	usual       bool   // in the default selection
	spec        func(*Options) probe.Spec
}

var tests = []testDef{
	{"tcp", "TCP, one stream", "bandwidth", true, func(o *Options) probe.Spec { return probe.Spec{Test: probe.Stream, Duration: o.Duration} }},
	{"tcp-many", "TCP, many streams", "bandwidth", true, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.Stream, Duration: o.Duration, Threads: o.Streams}
	}},
	{"udp", "UDP, as fast as it goes", "bandwidth", true, func(o *Options) probe.Spec { return probe.Spec{Test: probe.Datagrams, Duration: o.Duration} }},
	{"udp-rate", "UDP at a fixed rate", "bandwidth", true, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.Datagrams, Duration: o.Duration, Rate: o.UDPRate}
	}},
	{"tcp-rr", "request and answer, TCP", "latency", true, func(o *Options) probe.Spec { return probe.Spec{Test: probe.RoundTrip, Duration: o.Duration, Size: 64} }},
	{"udp-rr", "request and answer, UDP", "latency", true, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.UDPTrip, Duration: o.Duration, Size: 64, Patience: time.Second}
	}},
	{"crr", "connect, request, close", "latency", true, func(o *Options) probe.Spec { return probe.Spec{Test: probe.Connection, Duration: o.Duration, Body: 64} }},
	{"http", "HTTP requests one after the other", "latency", false, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.HTTP, Count: o.Requests, Body: 612}
	}},
	{"ab", "HTTP requests, some at a time, as ApacheBench", "latency", false, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.Apache, Count: 5 * o.Requests, Threads: o.Concurrency, Body: 612}
	}},
	{"cps", "new connections", "rates", true, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.Rate, Duration: o.Duration, Threads: o.Concurrency, Body: 64}
	}},
	{"pps", "datagrams of 64 bytes", "rates", true, func(o *Options) probe.Spec {
		return probe.Spec{Test: probe.Datagrams, Duration: o.Duration, Size: 64}
	}},
}

// pathDef is from where to where a test goes.
type pathDef struct {
	name, title string
	usual       bool
	group       string
	from        string // the pod that measures
	to          target
}

// target is what a path goes to.
type target int

const (
	toHost    target = iota // the server's node
	toPod                   // the server's pod
	toService               // a cluster IP in front of the server's pod
	toNodePort
)

// The pods, by what they are for.
const (
	podServer     = "server"      // on the server's node
	podNear       = "near"        // a client on the server's node
	podClient     = "client"      // on the client's node
	podServerHost = "server-host" // in the network of the server's node
	podClientHost = "client-host"
	// For the control plane only, on the server's node: a second backend, and one that policy
	// binds.
	podOther  = "other-server"
	podPolicy = "bound-server"
)

var paths = []pathDef{
	{"host2host", "node → node", true, "", podClientHost, toHost},
	{"pod2pod", "pod → pod", true, "", podClient, toPod},
	{"pod2svc", "pod → Service", true, "", podClient, toService},
	{"host2svc", "node → Service", false, "", podClientHost, toService},
	{"host2nodeport", "node → NodePort of the other node", false, "", podClientHost, toNodePort},
	{"host2host-local", "one node: node → node", false, "local", podServerHost, toHost},
	{"pod2pod-local", "one node: pod → pod", false, "local", podNear, toPod},
	{"pod2svc-local", "one node: pod → Service", false, "local", podNear, toService},
}

const outside = result.Outside

// outsidePath is from where this program runs.
var outsidePath = pathDef{"outside2nodeport", "this machine → NodePort", false, outside, outside, toNodePort}

// controlDefs are rows of the control plane: they have one path.
var controlDefs = []struct {
	id, title string
	test      probe.Test
}{
	{"control/endpoint", "EndpointSlice changed → in effect", probe.Endpoint},
	{"control/policy", "NetworkPolicy changed → in effect", probe.Policy},
	{"control/pod", "pod created → its first packet", probe.PodStart},
}

// planned is a row to measure.
type planned struct {
	id, title string
	from      string
	to        target
	spec      probe.Spec
	groups    []string
	usual     bool
}

// every row there is.
func every(o *Options) []planned {
	out := []planned{{id: "idle", title: "nothing", from: podClientHost, to: toHost, spec: probe.Spec{Test: probe.Idle, Duration: o.Duration}, usual: true,
		groups: []string{"idle"}}}
	for _, p := range append(slices.Clone(paths), outsidePath) {
		for _, t := range tests {
			s := t.spec(o)
			s.WarmUp, s.Congestion = o.WarmUp, o.Congestion
			groups := []string{t.group, p.name, t.name, p.group}
			out = append(out, planned{p.name + "/" + t.name, p.title + ": " + t.title, p.from, p.to, s, groups, p.usual && t.usual})
		}
	}
	for _, c := range controlDefs {
		out = append(out, planned{id: c.id, title: c.title, from: podClient, to: toPod, groups: []string{"control"},
			spec: probe.Spec{Test: c.test, Count: o.Changes}})
	}
	return out
}

// knbTests are knb's names of tests (--only-tests).
var knbTests = map[string][]string{
	"p2p": {"pod2pod/tcp", "pod2pod/udp"}, "p2s": {"pod2svc/tcp", "pod2svc/udp"},
	"p2ptcp": {"pod2pod/tcp"}, "p2pudp": {"pod2pod/udp"}, "p2stcp": {"pod2svc/tcp"}, "p2sudp": {"pod2svc/udp"},
}

// Groups are the names for several rows.
const Groups = "default, all, idle, bandwidth, latency, rates, local, control, outside, p2p, p2s, a path (pod2svc), a test (tcp-rr)"

// plan is what was asked for, in the order in which it is measured.
func plan(o *Options) ([]planned, error) {
	all := every(o)
	chosen := make([]bool, len(all))
	for _, word := range o.Rows {
		word = strings.TrimSpace(word)
		found := false
		for i, p := range all {
			ok := word == p.id || word == "default" && p.usual || slices.Contains(p.groups, word) || slices.Contains(knbTests[word], p.id) ||
				// What needs to be asked for by its name: where this program runs may not reach a
				// node, and the control plane is written to.
				word == "all" && p.from != outside && !slices.Contains(p.groups, "control")
			if p.from == outside && word != outside && word != outsidePath.name && word != p.id {
				ok = false
			}
			if strings.ContainsAny(word, "*?[") {
				match, err := path.Match(word, p.id)
				if err != nil {
					return nil, fmt.Errorf("row %q: %w", word, err)
				}
				ok = match
			}
			ok = ok && word != ""
			chosen[i] = chosen[i] || ok
			found = found || ok
		}
		if !found {
			return nil, fmt.Errorf("there is no row %q; `weir bench rows` lists them, and these are several: %s", word, Groups)
		}
	}
	var out []planned
	for i, p := range all {
		if chosen[i] {
			out = append(out, p)
		}
	}
	return out, nil
}

// RowInfo names a row.
type RowInfo struct {
	ID, Title string
	Usual     bool
}

// AllRows are the rows there are.
func AllRows(o Options) []RowInfo {
	var out []RowInfo
	for _, p := range every(&o) {
		out = append(out, RowInfo{p.id, p.title, p.usual})
	}
	return out
}
