// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// TestOf holds how agents are summed up, and that a report stays small with any number of them.
func TestOf(t *testing.T) {
	t.Parallel()
	agents := []Agent{{Node: "n1", View: 100}, {Node: "n2", Behind: 20 * time.Millisecond, View: 300}, {Node: "n3", Behind: 6 * time.Second}, {Node: "n4", Behind: LateAfter, View: 200}, {Node: "n5"}}
	got := Of(noon, "here", false, noon.Add(-time.Minute), "connection refused", agents)
	want := Report{At: noon, Node: "here", Nodes: 5, Since: noon.Add(-time.Minute), Error: "connection refused", BehindMedian: 20, BehindMost: 6000, BehindNode: "n3",
		Late: 1, LateNodes: []Late{{"n3", 6000}}, Views: 3, ViewMedian: 200, ViewMost: 300}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := Of(noon, "here", true, noon, "", nil); got.Nodes != 0 || got.BehindNode != "" || got.Views != 0 {
		t.Errorf("without agents: %+v", got)
	}
	agents = nil
	for i := range 5000 {
		agents = append(agents, Agent{Node: fmt.Sprintf("%s-%d", strings.Repeat("n", 200), i), Behind: time.Hour, View: 1})
	}
	text, err := json.Marshal(Of(noon, "here", false, noon, strings.Repeat("x", 10000), agents))
	if err != nil || len(text) > 4<<10 || !strings.Contains(string(text), `"late":5000`) {
		t.Errorf("a report of %d bytes: %v", len(text), err)
	}
}

// TestLine holds what is said of a replica, and what of it is a fault.
func TestLine(t *testing.T) {
	t.Parallel()
	base := Report{At: noon, Node: "n1", Nodes: 2, Connected: true, Since: noon.Add(-time.Hour), BehindMost: 120, BehindNode: "n7", Views: 1, ViewMedian: 6300000, ViewMost: 6300000}
	for _, c := range []struct {
		change func(*Report)
		line   string
		faults []string
	}{
		{func(*Report) {}, "f-1 on n1: 2 nodes; behind: worst 120ms (n7), median 0s; views: median 6.3 MB, largest 6.3 MB (of 1); in touch with the API server since 11:00:00 (1h0m0s)", nil},
		{func(r *Report) { r.Nodes, r.Views = 0, 0 }, "f-1 on n1: 0 nodes; in touch with the API server since 11:00:00 (1h0m0s)", nil},
		{func(r *Report) { r.Connected, r.Since, r.Error = false, noon.Add(-3*time.Minute), "refused" }, "without the API server since 11:57:00 (3m0s)",
			[]string{"out of touch with the API server since 11:57:00 (3m0s), and what it sends may be as old: refused"}},
		{func(r *Report) { r.At = noon.Add(-2 * time.Minute) }, "no report since 11:58:00 (2m0s)", []string{"has not reported since 11:58:00 (2m0s)"}},
		{func(r *Report) { r.Since = noon.Add(-48 * time.Hour) }, "since 2026-11-24 12:00:00 (48h0m0s)", nil},
		{func(r *Report) { r.Late, r.LateNodes = 3, []Late{{"n7", 9000}} }, "2 nodes", []string{"for more than 5s: n7 9s and 2 more"}},
	} {
		r := base
		c.change(&r)
		line, faults := r.Line("f-1", noon)
		if !strings.Contains(line, c.line) || len(faults) != len(c.faults) {
			t.Errorf("%q, faults %q\nwant %q, %q", line, faults, c.line, c.faults)
			continue
		}
		for i := range faults {
			if !strings.Contains(faults[i], c.faults[i]) {
				t.Errorf("fault %q, want %q in it", faults[i], c.faults[i])
			}
		}
	}
}

// TestWriter holds that a replica writes its own entry, keeps those of others that are there,
// removes those of replicas that are gone, goes on after failures, and takes its own away at its
// end.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entry := func(at time.Time) string {
			text, err := json.Marshal(Report{At: at})
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		kube := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: ConfigMap},
			Data: map[string]string{"other": entry(time.Now()), "gone": entry(time.Now().Add(-goneAfter - time.Second)), "broken": "{"}})
		away := false
		kube.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away, nil, errors.New("connection refused")
		})
		nodes := 1
		w := Writer{Kube: kube, Namespace: "kube-system", Replica: "mine", Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Report: func() Report { return Report{At: time.Now(), Nodes: nodes} }}
		var heard error
		told := 0
		w.Heard = func(err error) { heard, told = err, told+1 }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		read := func() map[string]Report {
			synctest.Wait()
			got, unreadable, err := Read(t.Context(), kube, "kube-system")
			if err != nil || len(unreadable) > 0 {
				t.Fatal(err, unreadable)
			}
			return got
		}
		if got := read(); !slices.Equal(slices.Sorted(maps.Keys(got)), []string{"mine", "other"}) || got["mine"].Nodes != 1 {
			t.Errorf("first: %+v", got)
		}
		nodes, away = 2, true
		time.Sleep(2 * Every)
		if got := read(); got["mine"].Nodes != 1 {
			t.Errorf("while the API server is away: %+v", got)
		}
		if heard == nil || told < 2 {
			t.Errorf("%d reports, the last one: %v", told, heard)
		}
		away = false
		time.Sleep(Every)
		if got := read(); got["mine"].Nodes != 2 {
			t.Errorf("after it came back: %+v", got)
		}
		if heard != nil {
			t.Errorf("after it came back: %v", heard)
		}
		cancel()
		<-done
		if got := read(); len(got) != 1 {
			t.Errorf("after the end: %+v", got)
		}
	})
}

// TestRead holds that there may be no object, and that what cannot be read is named.
func TestRead(t *testing.T) {
	t.Parallel()
	if got, _, err := Read(t.Context(), fake.NewClientset(), "kube-system"); err != nil || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
	kube := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: ConfigMap}, Data: map[string]string{"a": `{"nodes":3}`, "b": "x"}})
	got, unreadable, err := Read(t.Context(), kube, "kube-system")
	if err != nil || got["a"].Nodes != 3 || !slices.Equal(unreadable, []string{"b"}) {
		t.Errorf("%v, %q, %v", got, unreadable, err)
	}
}
