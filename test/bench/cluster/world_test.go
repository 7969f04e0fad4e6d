// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/bench"
)

// TestWorld holds that the objects are those that the results are of: each pod has an address of
// its own, in its node's block; policies have ten rules, and namespaces are selected by 1 to 5 %.
func TestWorld(t *testing.T) {
	t.Parallel()
	w := newWorld(options{policies: 400, services: 50, seed: 7}, 40)
	blocks, owners, local := map[string]netip.Prefix{}, map[string]string{}, 0
	rules := map[string]int{}
	for o := range w.objects() {
		switch v := o.(type) {
		case *unstructured.Unstructured:
			spec := v.Object["spec"].(map[string]any)
			blocks[spec["node"].(string)] = netip.MustParsePrefix(spec["cidr"].(string))
		case *corev1.Pod:
			if v.Spec.HostNetwork {
				continue
			}
			if other, taken := owners[v.Status.PodIP]; taken {
				t.Errorf("pods %s and %s have address %s", other, v.Name, v.Status.PodIP)
			}
			owners[v.Status.PodIP] = v.Name
			if b := blocks[v.Spec.NodeName]; !b.Contains(netip.MustParseAddr(v.Status.PodIP)) {
				t.Errorf("pod %s of %s has address %s, its block is %s", v.Name, v.Spec.NodeName, v.Status.PodIP, b)
			}
			if v.Spec.NodeName == nodeName(0) {
				local++
			}
		case *networkingv1.NetworkPolicy:
			if v.Namespace == probeSpace {
				continue
			}
			if len(v.Spec.Ingress) != 10 {
				t.Errorf("policy %s has %d rules", v.Name, len(v.Spec.Ingress))
			}
			for _, r := range v.Spec.Ingress {
				switch peer := r.From[0]; {
				case peer.IPBlock != nil:
					rules["network"]++
				case peer.PodSelector != nil:
					rules["own"]++
				case len(peer.NamespaceSelector.MatchExpressions) > 0:
					rules["namespaces"]++
					if n := len(peer.NamespaceSelector.MatchExpressions[0].Values); n < namespaces/100 || n > namespaces/20 {
						t.Errorf("policy %s selects %d namespaces", v.Name, n)
					}
				default:
					rules["probe"]++
				}
			}
		}
	}
	if len(blocks) != 40 || len(owners) != len(w.pods)+3 || local != podsOfOurs+1 {
		t.Errorf("%d blocks, %d addresses of %d pods, %d of them on our node", len(blocks), len(owners), len(w.pods), local)
	}
	all := 4000 - namespaces // the first rule of each namespace's first policy is the probe's
	if rules["probe"] != namespaces || rules["own"] < all*4/10 || rules["namespaces"] < all*3/10 || rules["network"] < all*5/100 {
		t.Errorf("rules by kind: %v", rules)
	}
	for _, s := range w.serviceObjects() {
		if len(s.Endpoints) != endpointsOf {
			t.Errorf("Service %s has %d endpoints", s.Name, len(s.Endpoints))
		}
		for _, e := range s.Endpoints {
			if owners[e.Addr.String()] == "" {
				t.Errorf("Service %s has endpoint %s, which is no pod", s.Name, e.Addr)
			}
		}
	}
}

// TestHeadline holds which rows the figures are of that are looked at first.
func TestHeadline(t *testing.T) {
	t.Parallel()
	row := func(name string, busy, effect float64, cores ...float64) Row {
		return Row{Name: name, BusyDuring: busy, AgentMcore: effect, FanOutCores: cores, FanOutRSS: cores,
			Effect: map[string]*sample{"all": {raw: []float64{effect}}}, Received: map[string]*sample{"all": {raw: []float64{2 * effect}}}}
	}
	r := Result{FanOutStartSeconds: []float64{3, 5}, Rows: []Row{row("start of all agents", 1, 0, 9, 9)},
		Fed: &AgentResult{RSS: 60, RSSAfter: 70, Rows: []Row{row("idle", 0.1, 1, 0.1, 0.2), row("20 pods", 0.5, 2, 0.3, 0.4), row("100 pods", 0.9, 3, 0.8, 0.7), row("10 slices", 0.2, 4), row("5 pods", 0.4, 5)}}}
	r.Fed.row("20 pods").PodsPerSecond, r.Fed.row("5 pods").PodsPerSecond = 20, 5
	r.headline()
	r.headline() // as after each row
	if r.LatencyRow != "20 pods" || r.EffectP50 != 2 || r.ReceivedP99 != 4 {
		t.Errorf("latencies of %q: %+v", r.LatencyRow, r)
	}
	if r.AgentRSS != 70 || r.AgentIdle != 1 || r.AgentAt20 != 2 || r.AgentAt100 != 3 || r.FanOutCores != 0.8 || r.FanOutRSS != 9 || r.FanOutStart != 5 {
		t.Errorf("figures: %+v", r)
	}
}

// TestPolicyOfAll holds that its peers are all pods, of all namespaces.
func TestPolicyOfAll(t *testing.T) {
	t.Parallel()
	p := newWorld(options{seed: 7}, 2).policyOfAll("ns1", "everyone", metav1.LabelSelector{})
	if len(p.Spec.Ingress) != 1 || len(p.Spec.Ingress[0].Ports) != 0 || len(p.Spec.Ingress[0].From) != 1 || len(p.Spec.PodSelector.MatchLabels) != 0 {
		t.Fatalf("the policy is %+v", p.Spec)
	}
	if peer := p.Spec.Ingress[0].From[0]; peer.NamespaceSelector == nil || len(peer.NamespaceSelector.MatchLabels)+len(peer.NamespaceSelector.MatchExpressions) != 0 || peer.PodSelector != nil {
		t.Errorf("its peers are %+v", peer)
	}
}

// TestLoads holds that each load that results are compared by is measured.
func TestLoads(t *testing.T) {
	t.Parallel()
	s := &site{world: newWorld(options{rates: []int{20, 100}, grown: 30000}, 2)}
	names := func(of ...[]load) (out []string) {
		for _, list := range of {
			for _, l := range list {
				out = append(out, l.name)
			}
		}
		return out
	}
	light, heavy := s.loads()
	if got, want := strings.Join(names(light, heavy, s.grownLoads()), "; "),
		"idle; 10 slices; 1 policy; 1 namespace; 1 policy of all pods; 20 pods; 100 pods; all kinds; 30000 policies; 30000 policies, 1 changes"; got != want {
		t.Errorf("rows: %s\nwant  %s", got, want)
	}
	s.brief = true
	if light, heavy = s.loads(); strings.Join(names(light, heavy), "; ") != "idle; 20 pods; 100 pods" {
		t.Errorf("rows of a size that is not the largest: %q", names(light, heavy))
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o     options
		sizes string
		ok    bool
	}{
		{options{policies: 2000, grown: 30000}, "1000", true},
		{options{policies: 2000}, "1000", true},
		{options{policies: 2000, grown: 2000}, "1000", false},
		{options{policies: 2000}, "", false},
		{options{policies: 2000, plot: "x.svg"}, "100,300", true},
		{options{policies: 2000, plot: "x.svg"}, "100", true},
		{options{policies: 2000}, "1", false},
		{options{policies: 2000, away: time.Minute}, "30", true},
		{options{policies: 2000, away: time.Second}, "30", false},
	} {
		if err := parse(&c.o, c.sizes, "20"); (err == nil) != c.ok {
			t.Errorf("%+v, sizes %q: %v", c.o, c.sizes, err)
		}
	}
}

// TestSizeFlags holds at which size all rows are measured, and at which the API server is stopped.
func TestSizeFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o     options
		nodes int
		want  string
	}{
		{options{sizes: []int{100, 300, 1000}, away: time.Minute}, 100, "-sizes 100 -away 1m0s -brief=true"},
		{options{sizes: []int{100, 300, 1000}, away: time.Minute}, 300, "-sizes 300 -away 0s -brief=true"},
		{options{sizes: []int{100, 300, 1000}, away: time.Minute}, 1000, "-sizes 1000 -away 0s -brief=false"},
		{options{sizes: []int{30}, away: time.Minute}, 30, "-sizes 30 -away 1m0s -brief=false"},
		{options{sizes: []int{3000}, brief: true}, 3000, "-sizes 3000 -away 0s -brief=true"},
	} {
		if got := strings.Join(c.o.sizeFlags(c.nodes), " "); got != c.want {
			t.Errorf("%d of %v: %s, want %s", c.nodes, c.o.sizes, got, c.want)
		}
	}
}

// TestPicture draws results as they are read from a file, and says when there is no curve.
func TestPicture(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.svg")
	at := func(nodes int, ms float64) *Result {
		idle := Row{Name: "idle", Effect: map[string]*sample{"pod": {Summary: bench.Summary{P50: ms, P99: 2 * ms}}}}
		return &Result{Nodes: nodes, AgentRSS: float64(nodes), Fed: &AgentResult{Rows: []Row{idle}}}
	}
	if err := draw([]*Result{at(100, 1)}, file); err == nil {
		t.Error("one size is drawn")
	}
	if err := draw([]*Result{{Nodes: 1}, {Nodes: 2}}, file); err == nil {
		t.Error("results without figures are drawn")
	}
	if err := draw([]*Result{at(300, 2), at(100, 1)}, file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{"<svg", "agent, fed", "to its effect, p99", "nodes"} {
		if !strings.Contains(string(text), has) {
			t.Errorf("the picture lacks %q", has)
		}
	}
	if strings.Contains(string(text), "agent, by itself") {
		t.Error("a curve of what was not measured is drawn")
	}
	if got := alone(at(100, 7)).Effect["pod"].summary(); got.P50 != 7 || got.P99 != 14 {
		t.Errorf("figures read from a file: %+v", got)
	}
}
