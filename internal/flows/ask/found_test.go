// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
)

// The latest records are kept, and the others counted, however they are spread over nodes.
func TestLatest(t *testing.T) {
	t.Parallel()
	answers := map[string]string{}
	for node, first := range map[string]int64{"n1": 0, "n2": 1, "n3": 2} {
		var all []flows.Flow
		for i := range int64(5) {
			all = append(all, flows.Flow{Node: node, End: time.Unix(first+3*i, 0).UTC()})
		}
		answers[node] = flowsOf(t, node, 0, all...)
	}
	agents := &Agents{Nodes: []string{"n1", "n2", "n3"}, Ask: func(_ context.Context, node string, _ wire.Question, out io.Writer) error {
		_, err := io.WriteString(out, answers[node])
		return err
	}}
	for most, want := range map[int]int{0: 15, 4: 4, 15: 15, 20: 15} {
		found, err := agents.Latest(t.Context(), flows.Filter{}, most)
		if err != nil || len(found.Flows) != want || found.Left != 15-want {
			t.Fatalf("%d: %d records, %d left, %v", most, len(found.Flows), found.Left, err)
		}
		for i, f := range found.Flows {
			if at := int64(15 - want + i); f.End.Unix() != at {
				t.Errorf("%d: record %d ended at %d, want %d", most, i, f.End.Unix(), at)
			}
		}
	}
}
