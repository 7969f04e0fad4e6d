// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/flowstore/names"
)

// How the store is: not there, not ready, ready, or silent; and what it lost in the last hour.
func TestStatus(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	if st, err := ReadStatus(t.Context(), fake.NewClientset(), nil, now); st.Line+st.Fault != "" || err != nil {
		t.Errorf("without a store: %+v %v", st, err)
	}
	store := func(lines ...flows.Line) *ask.Store {
		return &ask.Store{Ask: func(_ context.Context, q wire.Question, out io.Writer) error {
			if !strings.Contains(q.Path, "since=2001-09-09T00%3A46%3A40Z") {
				t.Errorf("asked %s", q.Path)
			}
			return answering(t, lines...)(out)
		}}
	}
	for _, c := range []struct {
		ready int32
		store *ask.Store
		line  string
		fault bool
		lost  []string
	}{
		{0, nil, "weir-flows 0/1 ready", true, nil},
		{1, store(flows.Line{Store: &flows.StoreStatus{Records: 5, Bytes: 1 << 20, Nodes: 2, Silent: []string{"a", "b", "c", "d"}}}),
			"weir-flows 1/1 ready, 5 records, 1.0 MiB on its disk, of 2 nodes; 4 nodes whose records it had are not connected: a, b, c, …", false, nil},
		{1, store(flows.Line{Store: &flows.StoreStatus{Lost: map[string]uint64{"old": 3, "ring": 9, "full": 7, "disk": 0}, Old: []flows.NodeLost{{Node: "n1", Records: 2}, {Node: "n2", Records: 1}},
			Exports: map[string]map[string]uint64{"otlp": {"queue": 8, "refused": 0}}}}), "weir-flows 1/1 ready, 0 records, 0.0 MiB on its disk, of 0 nodes", false,
			[]string{"weir-flows: 7 (full)…--flows-size", "weir-flows: 3 (old)…FELIX_FlowRecordsKept; by node, since the store knows it: n1 2, n2 1", "weir-flows: 8 (queue) not sent by otlp…away or too slow"}},
		{1, store(), "weir-flows 1/1 ready, it does not say how it is: no store of flow records answers", false, nil},
	} {
		kube := fake.NewClientset(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: names.Name}, Status: appsv1.DeploymentStatus{ReadyReplicas: c.ready}})
		st, err := ReadStatus(t.Context(), kube, c.store, now)
		if st.Line != c.line || (st.Fault != "") != c.fault || err != nil || !slices.EqualFunc(st.Lost, c.lost, beginsAndEnds) {
			t.Errorf("%+v %v", st, err)
		}
	}
}

// beginsAndEnds compares a line with its begin and end, between which is "…".
func beginsAndEnds(line, want string) bool {
	begin, end, _ := strings.Cut(want, "…")
	return strings.HasPrefix(line, begin) && strings.HasSuffix(line, end)
}

// What a node lost is told of for an hour, with what to do about it, where that is known.
func TestLostByNode(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	before := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	got := LostByNode("n1", &weirv1.FlowRecordsStatus{Lost: []weirv1.LostFlowRecords{
		{Why: "evicted", Records: 12, LastTime: before(40 * time.Second)}, {Why: "ring", Records: 3, LastTime: before(2 * time.Hour)}, {Why: "later", Records: 1, LastTime: before(-time.Second)},
	}}, now)
	want := []string{"n1: 12 (evicted) since its agent began, the last 40s ago: …raise bpfMapSizeConntrack", "n1: 1 (later) since its agent began, the last 0s ago…"}
	if !slices.EqualFunc(got, want, beginsAndEnds) {
		t.Errorf("%q", got)
	}
	if got := LostByNode("n1", nil, now); got != nil {
		t.Errorf("of nothing: %q", got)
	}
}
