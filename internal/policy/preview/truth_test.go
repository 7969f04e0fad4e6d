// SPDX-License-Identifier: Apache-2.0

package preview_test

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/policy/objects"
	"github.com/weir-net/weir/internal/policy/past"
	"github.com/weir-net/weir/internal/policy/policytest"
	"github.com/weir-net/weir/internal/policy/preview"
)

// cluster is a world with policies.
func cluster(t testing.TB, w *policytest.World, policies []*unstructured.Unstructured) *objects.Cluster {
	t.Helper()
	c, err := objects.FromObjects(append(append([]*unstructured.Unstructured{}, w.Objects...), policies...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// change makes a random change: policies come, go and differ.
func change(t testing.TB, w *policytest.World, c *objects.Cluster, policies []*unstructured.Unstructured) *objects.Change {
	t.Helper()
	x := c.Try()
	applied := map[string]bool{}
	name := func(u *unstructured.Unstructured) string {
		return fmt.Sprintf("%s.%s/%s/%s", u.GetKind(), u.GroupVersionKind().Group, u.GetNamespace(), u.GetName())
	}
	for _, u := range w.Policies(3) {
		if _, err := x.Apply(u); err != nil {
			t.Fatal(err)
		}
		applied[name(u)] = true
	}
	for _, u := range policies {
		what := u.GetKind() + "." + u.GroupVersionKind().Group + "/" + u.GetName()
		if u.GetNamespace() != "" {
			what = u.GetKind() + "." + u.GroupVersionKind().Group + "/" + u.GetNamespace() + "/" + u.GetName()
		}
		if w.IntN(3) > 0 || applied[name(u)] {
			continue
		}
		applied[name(u)] = true // of two of one name the world has one
		if err := x.Delete(what, ""); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// questions are what records ask.
func questions(c *model.Cluster, bySource bool, records []*flows.Flow) []*past.Question {
	p := past.New(bySource)
	for _, f := range records {
		p.Add(f)
	}
	return p.Questions(c.Pods.Get)
}

// key is a flow as questions have it.
type key struct {
	from, to netip.Addr
	proto    model.Protocol
	port     uint16
	source   uint16
}

func keyOf(q *past.Question) key {
	k := key{from: q.From.Addr, to: q.To.Addr, proto: q.Protocol, port: q.Port}
	if q.HasSource && q.Protocol != model.ProtocolICMP {
		k.source = q.SourcePort
	}
	return k
}

// What is said of a change before it is made is what the data plane's oracle says of the same flows
// when it is made: no flow differs, and none is unknown.
func TestPreviewIsWhatHappens(t *testing.T) {
	t.Parallel()
	compared, differ, changed := 0, 0, map[string]int{}
	differs := func(format string, args ...any) {
		t.Helper()
		differ++
		t.Errorf(format, args...)
	}
	for seed := range uint64(50) {
		w := policytest.New(seed)
		policies := w.Policies(4)
		c := cluster(t, w, policies)
		x := change(t, w, c, policies)
		before, after := c.Now(), x.Model()
		now, then := w.InForce(before), w.InForce(after)
		records, all := now.Records(t, w.Flows(60))
		bySource := preview.LooksAtSources(before, after)
		out := preview.Run(before, after, questions(before, bySource, records))
		said := map[key][2]bool{}
		note := func(q *past.Question, was, is bool) {
			k := keyOf(q)
			if have, twice := said[k]; twice && have != [2]bool{was, is} {
				t.Fatalf("seed %d: %+v: %v and %v", seed, k, have, [2]bool{was, is})
			}
			said[k] = [2]bool{was, is}
		}
		for _, q := range out.Denied {
			note(q.Question, true, false)
		}
		for _, q := range out.Allowed {
			note(q.Question, false, true)
		}
		for _, q := range out.Unknown {
			t.Errorf("seed %d: %+v is not known: %s", seed, keyOf(q.Question), q.Unknown)
		}
		if len(out.Otherwise) > 0 {
			t.Errorf("seed %d: %+v is decided otherwise than it was recorded, and nothing changed", seed, keyOf(out.Otherwise[0].Question))
		}
		unchanged := map[key]bool{}
		for _, q := range out.Unchanged {
			unchanged[keyOf(q)] = true
		}
		for _, f := range all {
			was, ok := now.Allows(f)
			is, ok2 := then.Allows(f)
			if !ok || !ok2 {
				t.Fatalf("seed %d: %+v: policy has no say", seed, f)
			}
			k := w.Key(f)
			asked := key{k.From, k.To, k.Protocol, k.Port, 0}
			verdicts, some := said[asked]
			if !some && bySource {
				asked.source = k.SourcePort
				verdicts, some = said[asked]
			}
			compared++
			switch {
			case some && verdicts != [2]bool{was, is}:
				differs("seed %d: %+v: said %v, and it is %v", seed, f, verdicts, [2]bool{was, is})
			case !some && was != is:
				differs("seed %d: %+v: nothing is said, and it changes to %t", seed, f, is)
			case some && unchanged[asked]:
				differs("seed %d: %+v changes and does not", seed, f)
			case was != is:
				changed[fmt.Sprint(is)]++
			default:
				changed["same "+fmt.Sprint(is)]++
			}
		}
	}
	nettest.Figure(t, "preview, flows compared", float64(compared))
	nettest.Figure(t, "preview, flows that differ", float64(differ))
	for _, what := range []string{"true", "false", "same true", "same false"} {
		if changed[what] < 60 {
			t.Errorf("%d of %d flows end as %q: the worlds are too plain (%v)", changed[what], compared, what, changed)
		}
	}
}

// With pods that are gone, have other labels by now, or whose labels no record has, what is said is
// true still, and what cannot be is unknown.
func TestPreviewOfWhatIsGone(t *testing.T) {
	t.Parallel()
	why, right := map[string]int{}, 0
	for seed := range uint64(50) {
		w := policytest.New(1000 + seed)
		policies := w.Policies(4)
		then := cluster(t, w, policies)
		x := change(t, w, then, policies)
		before, after := then.Now(), x.Model()
		now, later := w.InForce(before), w.InForce(after)
		records, all := now.Records(t, w.Flows(60))
		// The same cluster, with fewer pods, others of the same name, and a namespace less.
		var left []*unstructured.Unstructured
		for _, u := range w.Objects {
			switch {
			case u.GetKind() == "Pod" && w.IntN(4) == 0, u.GetKind() == "Namespace" && u.GetName() == "c" && seed%4 == 0:
				continue
			case u.GetKind() == "Pod" && w.IntN(4) == 0:
				u = u.DeepCopy()
				u.SetLabels(map[string]string{"app": "db"})
			}
			left = append(left, u)
		}
		for _, f := range records {
			if w.IntN(6) == 0 { // as a node that does not know the other's pods
				for _, p := range []*flows.Peer{&f.Source, &f.Destination} {
					if p.Node != f.Node {
						p.Labels, p.Node = nil, ""
					}
				}
			}
		}
		pods, err := objects.FromObjects(left)
		if err != nil {
			t.Fatal(err)
		}
		gone := pods.Now()
		trim := func(c *model.Cluster) *model.Cluster {
			of := *c
			of.Pods, of.Namespaces = gone.Pods, gone.Namespaces
			return &of
		}
		bySource := preview.LooksAtSources(before, after)
		out := preview.Run(trim(before), trim(after), questions(gone, bySource, records))
		said := map[key][2]bool{}
		for _, q := range out.Denied {
			said[keyOf(q.Question)] = [2]bool{true, false}
		}
		for _, q := range out.Allowed {
			said[keyOf(q.Question)] = [2]bool{false, true}
		}
		unknown, unchanged := map[key]bool{}, map[key]bool{}
		for _, q := range out.Unknown {
			unknown[keyOf(q.Question)] = true
			why[q.Unknown]++
		}
		for _, q := range out.Unchanged {
			unchanged[keyOf(q)] = true
		}
		for _, f := range all {
			was, _ := now.Allows(f)
			is, _ := later.Allows(f)
			k := w.Key(f)
			for _, source := range []uint16{0, k.SourcePort} {
				asked := key{k.From, k.To, k.Protocol, k.Port, source}
				if verdicts, some := said[asked]; some && verdicts != [2]bool{was, is} {
					t.Fatalf("seed %d: %+v: said %v, and it is %v", seed, f, verdicts, [2]bool{was, is})
				} else if some || unchanged[asked] {
					right++
				}
				if unchanged[asked] && !unknown[asked] && was != is {
					t.Fatalf("seed %d: %+v: said to be unchanged, and it changes to %t", seed, f, is)
				}
			}
		}
	}
	for _, reason := range []string{past.LackLabels, preview.LackNamespace, preview.LackAccount, preview.LackNames} {
		if why[reason] == 0 {
			t.Errorf("nothing is unknown for want of %q: %v", reason, why)
		}
	}
	if right < 1000 {
		t.Errorf("%d flows are known: too few to say anything", right)
	}
}
