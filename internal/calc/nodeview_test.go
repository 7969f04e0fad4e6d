// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/nodeview"
)

// TestViewEqualsWhole holds that the state computed from a node's view is the one computed from the
// whole cluster, and that views leave something out.
func TestViewEqualsWhole(t *testing.T) {
	t.Parallel()
	worlds := 60
	if testing.Short() {
		worlds = 20
	}
	var whole, view struct{ pods, policies, labels int }
	for seed := range worlds {
		w := newWorld(uint64(9000 + seed))
		w.fill()
		for step := range 40 {
			var d model.Dirty
			w.change(&d)
			of := nodeview.Of(w.c)
			got, _ := calculator(seed).Update(of, model.AllDirty())
			want, _ := calculator(seed).Update(w.c, model.AllDirty())
			if !nodestate.Equal(got, want) {
				t.Fatalf("seed %d step %d: - from the view, + from the whole\n%s", seed, step, nodestate.Diff(got, want))
			}
			whole.pods, whole.policies = whole.pods+len(w.c.Pods), whole.policies+len(w.c.Policies)
			view.pods, view.policies = view.pods+len(of.Pods), view.policies+len(of.Policies)
		}
	}
	t.Logf("pods %d of %d, policies %d of %d", view.pods, whole.pods, view.policies, whole.policies)
	if view.pods*10 > whole.pods*9 || view.policies*10 > whole.policies*9 {
		t.Errorf("views leave out little: pods %d of %d, policies %d of %d", view.pods, whole.pods, view.policies, whole.policies)
	}
}
