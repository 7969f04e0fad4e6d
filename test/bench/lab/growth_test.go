// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
)

func result(row, configuration string, services int, median float64) Result {
	return Result{Row: row, Configuration: configuration, Services: services, Median: median}
}

func TestGrowthIsCorrectedForDrift(t *testing.T) {
	const path = "pod → ClusterIP, other node, connections"
	var results []Result
	for _, x := range []struct {
		size                int
		bare, weir, proxied float64
	}{{10, 40, 38, 50}, {1000, 42, 40, 52}, {10000, 44, 41.8, 80}} {
		suffix := row{}.withOthers(x.size).name
		results = append(results, result(rowPodRemote+suffix, none, x.size, x.bare), result(path+suffix, weirTunnel, x.size, x.weir))
		results = append(results, result(path+suffix, kpIPTables, x.size, x.proxied))
	}
	results = append(results, result(path+row{}.withOthers(100000).name, weirTunnel, 100000, 41.8), result(rowPodRemote+row{}.withOthers(100000).name, none, 100000, 44))
	got := growths(results, false)
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	weir := got[1]
	if weir.Configuration != weirTunnel || !near(weir.Ratio, 1.1) || !near(weir.Drift, 1.1) || !near(weir.Corrected, 1) || !weir.Met {
		t.Errorf("%+v", weir)
	}
	if !near(weir.OfPeers[kpIPTables], 41.8/80) {
		t.Errorf("of kube-proxy at its largest size: %v", weir.OfPeers)
	}
	if p := got[2]; !near(p.Ratio, 1.6) || p.Met || p.OfPeers != nil {
		t.Errorf("%+v", p)
	}
	for _, g := range growths(results[1:2], true) {
		if g.Met || g.Drift != 0 || g.Corrected != g.Ratio || g.Pods[0] != 20 {
			t.Errorf("one size, nothing to compare with: %+v", g)
		}
	}
}

func TestCrowds(t *testing.T) {
	got := crowds([]Result{result("x"+rowOne, weirTunnel, 0, 40), result("x"+rowMany, weirTunnel, 0, 42), result("x"+rowMany, weirDSR, 0, 42)}, 5000)
	if len(got) != 2 || got[0].Ratio != 1.05 || got[0].Met || got[1].Ratio != 0 || got[1].Met {
		t.Errorf("%+v", got)
	}
}

func TestWhatIsGoneThrough(t *testing.T) {
	for _, c := range []struct {
		options
		want  int
		fails bool
	}{
		{options: options{sizes: "10,1000"}, want: 2}, {options: options{pods: "10,16000"}, want: 2}, {options: options{backends: 5000}},
		{options: options{pods: "5"}, fails: true}, {options: options{sizes: "10", backends: 2}, fails: true}, {options: options{sizes: "20,10"}, fails: true},
		{options: options{backends: maxBackends + 1}, fails: true},
	} {
		got, err := c.growth()
		if len(got) != c.want || (err != nil) != c.fails {
			t.Errorf("%+v: %v, %v", c.options, got, err)
		}
	}
	plan := func(o options) int {
		growth, err := o.growth()
		if err != nil {
			t.Fatal(err)
		}
		return len((&runner{options: o, growth: growth}).plan())
	}
	if n := plan(options{pods: "10,20,30"}); n != 6 {
		t.Errorf("%d rows of ApacheBench and its control at three sizes", n)
	}
	if n := plan(options{backends: 5000}); n != 6 {
		t.Errorf("%d rows of many backends", n)
	}
	if all, of := plan(options{}), plan(options{sizes: "10"}); all != 21 || of != 6 {
		t.Errorf("%d rows, %d of Services", all, of)
	}
}
