// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// All that has no effect, and all that is not in force, is listed; of what there may be much of,
// and nobody has to repair, the first lines are.
func TestStatusListsAll(t *testing.T) {
	t.Parallel()
	r, now := &report{}, time.Now()
	losing := &weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{FlowRecords: &weirv1.FlowRecordsStatus{Lost: []weirv1.LostFlowRecords{{Why: "ring", Records: 5, LastTime: metav1.NewTime(now)}}}}}
	for i := range 40 {
		r.problems = append(r.problems, fmt.Sprintf("problem-%d.", i))
		r.unsupported = append(r.unsupported, fmt.Sprintf("unsupported-%d.", i))
		r.drops = append(r.drops, fmt.Sprintf("drop-%d.", i))
		r.readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}, losing, now, time.Minute)
	}
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		for _, want := range []string{"problem", "unsupported"} {
			if text := fmt.Sprintf("%s-%d.", want, i); !strings.Contains(out.String(), text) {
				t.Errorf("%s is not listed", text)
			}
		}
	}
	if strings.Contains(out.String(), "drop-15.") || !strings.Contains(out.String(), "and 25 more") {
		t.Errorf("drops:\n%s", out.String())
	}
	if _, lost, _ := strings.Cut(out.String(), "Flow records lost in the last hour"); !strings.Contains(lost, "node-14: 5 (ring)") || strings.Contains(lost, "node-15") {
		t.Errorf("lost flow records:\n%s", out.String())
	}
}
