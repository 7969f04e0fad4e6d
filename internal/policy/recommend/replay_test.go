// SPDX-License-Identifier: Apache-2.0

package recommend_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/objects"
	"github.com/weir-net/weir/internal/policy/past"
	"github.com/weir-net/weir/internal/policy/policytest"
	"github.com/weir-net/weir/internal/policy/preview"
	"github.com/weir-net/weir/internal/policy/recommend"
)

// end is an end as policies for workloads tell them apart.
func end(w *policytest.World, a netip.Addr) string {
	for _, p := range w.Pods {
		if p.Addr == a {
			return fmt.Sprint(p.Name.Namespace, " ", p.Kind)
		}
	}
	return a.String()
}

// inNamespace reports whether an address is that of a pod of a namespace.
func inNamespace(w *policytest.World, a netip.Addr, namespace string) bool {
	return slices.ContainsFunc(w.Pods, func(p policytest.Pod) bool { return p.Addr == a && p.Name.Namespace == namespace })
}

// What is recommended denies none of the recorded flows, and every other pair of workloads, or of
// one and an address, and port: by the oracle of the data plane, with the policies in force.
func TestRecommendedIsWhatWasSeen(t *testing.T) {
	t.Parallel()
	allowed, denied := 0, 0
	for seed := range uint64(40) {
		w := policytest.New(2000 + seed)
		c, err := objects.FromObjects(w.Objects)
		if err != nil {
			t.Fatal(err)
		}
		now := c.Now()
		records, flows := w.InForce(now).Records(t, w.Flows(30))
		p := past.New(false)
		for _, f := range records {
			p.Add(f)
		}
		questions := p.Questions(now.Pods.Get)
		o := recommend.Options{Namespace: "a", Calico: seed%2 == 1, Staged: seed%4 == 3}
		text := recommend.Make(now, questions, o).YAML("a test")
		all, err := objects.Parse("recommended", []byte(text), "default")
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if last := all[len(all)-1].GetName(); last != "default-deny" {
			t.Errorf("seed %d: %s comes last, so that what was seen is denied while the file is applied", seed, last)
		}
		x := c.Try()
		for _, u := range all {
			if problems, err := x.Apply(u); err != nil || len(problems) > 0 {
				t.Fatalf("seed %d: %v %v\n%s", seed, err, problems, text)
			}
		}
		after := x.Model()
		icmp := func(p model.Protocol) bool { return p == model.ProtocolICMP }
		for _, q := range preview.Run(now, after, questions).Denied {
			if !icmp(q.Protocol) || o.Calico {
				t.Errorf("seed %d: denies %s → %s %s %d, which was seen\n%s", seed, q.From.Addr, q.To.Addr, q.Protocol, q.Port, text)
			}
		}
		seen := map[string]bool{}
		for _, f := range flows {
			k := w.Key(f)
			if ownNode(w, k) {
				continue
			}
			seen[fmt.Sprint(end(w, k.From), " → ", end(w, k.To), " ", k.Protocol, " ", k.Port)] = true
		}
		net := w.InForce(after)
		for _, f := range append(w.Flows(300), flows...) {
			k := w.Key(f)
			if k.From == k.To || !inNamespace(w, k.From, "a") && !inNamespace(w, k.To, "a") || icmp(k.Protocol) && !o.Calico || f.To == policytest.ServiceAddr {
				continue
			}
			if ownNode(w, k) {
				continue
			}
			want := seen[fmt.Sprint(end(w, k.From), " → ", end(w, k.To), " ", k.Protocol, " ", k.Port)]
			got, ok := net.Allows(f)
			if !ok {
				continue
			}
			if got != want {
				t.Fatalf("seed %d: %+v (%s → %s): allowed is %t, and seen %t\n%s", seed, f, end(w, k.From), end(w, k.To), got, want, text)
			}
			if got {
				allowed++
			} else {
				denied++
			}
		}
	}
	if allowed < 300 || denied < 300 {
		t.Errorf("%d flows are allowed, %d denied: the worlds are too plain", allowed, denied)
	}
}

// ownNode reports whether a flow is from a pod's own node, which no policy holds up.
func ownNode(w *policytest.World, k policytest.Key) bool {
	return slices.ContainsFunc(w.Pods, func(p policytest.Pod) bool { return p.Addr == k.To && policytest.Nodes[p.Node] == k.From })
}

// What names say stays in comments and in quotes, whatever it is.
func TestHostileNamesStayNames(t *testing.T) {
	t.Parallel()
	w := policytest.New(1)
	for _, u := range w.Objects {
		if u.GetKind() == "Pod" && u.GetNamespace() == "a" {
			u.SetLabels(map[string]string{"app": "true", "weir": u.GetLabels()["app"]})
		}
	}
	c, err := objects.FromObjects(w.Objects)
	if err != nil {
		t.Fatal(err)
	}
	now := c.Now()
	records, _ := w.InForce(now).Records(t, w.Flows(60))
	p := past.New(false)
	evil := "x\nspec: {podSelector: {}}\n---\napiVersion: v1\nkind: Namespace\x1b[2J"
	for _, f := range records {
		if f.Source.Pod != "" {
			f.Source.Workload = evil
		}
		f.Service = evil
		p.Add(f)
	}
	for _, calico := range []bool{false, true} {
		text := recommend.Make(now, p.Questions(now.Pods.Get), recommend.Options{Namespace: "a", Calico: calico}).YAML(evil)
		all, err := objects.Parse("recommended", []byte(text), "default")
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if slices.ContainsFunc(all, func(u *unstructured.Unstructured) bool { return u.GetKind() != "NetworkPolicy" }) || strings.Contains(text, "\x1b") {
			t.Errorf("what is said gets out of its comment:\n%s", text)
		}
	}
}
