// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		Fed: &AgentResult{RSS: 60, RSSAfter: 70, Rows: []Row{row("idle", 0.1, 1, 0.1, 0.2), row("20 pods", 0.5, 2, 0.3, 0.4), row("100 pods", 0.9, 3, 0.8, 0.7), row("10 slices", 0.2, 4)}}}
	r.headline()
	if r.LatencyRow != "20 pods" || r.EffectP50 != 2 || r.ReceivedP99 != 4 {
		t.Errorf("latencies of %q: %+v", r.LatencyRow, r)
	}
	if r.AgentRSS != 70 || r.AgentIdle != 1 || r.AgentAt20 != 2 || r.AgentAt100 != 3 || r.FanOutCores != 0.8 || r.FanOutRSS != 9 || r.FanOutStart != 5 {
		t.Errorf("figures: %+v", r)
	}
}
