// SPDX-License-Identifier: Apache-2.0

package flowlog

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node says what was lost since its agent began, by why, and when last: not what the kernel had
// counted before, and of another data plane that counts anew all.
func TestLosses(t *testing.T) {
	t.Parallel()
	var l losses
	at := func(second int64) metav1.Time { return metav1.Unix(second, 0) }
	if got := l.note(map[string]uint64{"ring": 7, "events": 0}, at(1)); got != nil {
		t.Errorf("before anything is lost: %+v", got)
	}
	l.note(map[string]uint64{"ring": 9, "events": 0}, at(2))
	l.note(map[string]uint64{"ring": 9, "events": 4, "evicted": 5}, at(3))
	got := l.note(map[string]uint64{"ring": 9, "events": 1, "evicted": 5}, at(4))
	if got == nil || len(got.Lost) != 3 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []struct {
		why     string
		records int64
		last    metav1.Time
	}{{"events", 5, at(4)}, {"evicted", 5, at(3)}, {"ring", 2, at(2)}} {
		if g := got.Lost[i]; g.Why != want.why || g.Records != want.records || !g.LastTime.Equal(&want.last) {
			t.Errorf("%+v, want %+v", g, want)
		}
	}
}

// Records that newer ones replaced in the agent's memory are no loss of the node; without records
// there is nothing to say.
func TestNodeStatus(t *testing.T) {
	t.Parallel()
	l, now := newLog(time.Minute), metav1.Now()
	l.NodeStatus(now)
	for range 2 * l.Collector.Most() {
		if err := l.Driver().FlowRecords(l.Collector.Add); err != nil {
			t.Fatal(err)
		}
		l.Collector.Flush()
	}
	if s, _ := l.Status(); s.Lost["old"] == 0 {
		t.Fatal("no record was replaced")
	}
	if got := l.NodeStatus(now); got != nil {
		t.Errorf("%+v", got)
	}
	if got := newLog(0).NodeStatus(now); got != nil {
		t.Errorf("without records: %+v", got)
	}
}
