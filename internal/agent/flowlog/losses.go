// SPDX-License-Identifier: Apache-2.0

package flowlog

import (
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// losses are what Status counts, as it grew since the first look.
type losses struct {
	mu   sync.Mutex
	seen map[string]uint64 // at the last look; nil = there was none
	lost map[string]*weirv1.LostFlowRecords
}

// NodeStatus is what the node's status says of flow records at a time; nil = nothing.
func (l *Log) NodeStatus(now metav1.Time) *weirv1.FlowRecordsStatus {
	if l.Collector.Interval() == 0 {
		return nil
	}
	s, _ := l.Status()
	delete(s.Lost, "old") // the store counts those that nobody took in time
	return l.losses.note(s.Lost, now)
}

// note takes the counters at a time. The first ones are those of an agent before, as the kernel
// keeps some of them.
func (l *losses) note(counted map[string]uint64, now metav1.Time) *weirv1.FlowRecordsStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen, l.lost = maps.Clone(counted), map[string]*weirv1.LostFlowRecords{}
	}
	for why, n := range counted {
		before := l.seen[why]
		if l.seen[why] = n; n < before { // another data plane counts anew
			before = 0
		}
		if n == before {
			continue
		}
		if l.lost[why] == nil {
			l.lost[why] = &weirv1.LostFlowRecords{Why: why}
		}
		l.lost[why].Records += int64(n - before)
		l.lost[why].LastTime = now
	}
	if len(l.lost) == 0 {
		return nil
	}
	out := &weirv1.FlowRecordsStatus{}
	for _, why := range slices.Sorted(maps.Keys(l.lost)) {
		out.Lost = append(out.Lost, *l.lost[why])
	}
	return out
}
