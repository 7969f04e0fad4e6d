// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"slices"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/model"
)

// TestUnfitPods holds of which pods events say that something is not in force: of those of the
// node, once for what is new.
func TestUnfitPods(t *testing.T) {
	t.Parallel()
	c := newCluster("n1", nil, config.New("n1", nil, nil), slog.New(slog.DiscardHandler))
	for name, node := range map[string]string{"here": "n1", "there": "n2"} {
		c.model.Pods.Put(&model.Pod{Name: model.Name{Namespace: "shop", Name: name}, Node: node, UID: name})
	}
	var got []string
	c.unfitPod = func(_ model.Name, uid string, found []weirv1.Problem) {
		for _, p := range found {
			got = append(got, uid+": "+p.Message)
		}
	}
	problem := func(object, message string) weirv1.Problem {
		return weirv1.Problem{Object: object, Field: "f", Value: "v", Message: message, Action: "do"}
	}
	first := []weirv1.Problem{problem("Pod shop/here", "a"), problem("Pod shop/there", "a"), problem("Service shop/here", "a"), problem("Pod shop/here", "b")}
	c.noteUnfitPods(nil, first)
	c.noteUnfitPods(first, append(first, problem("Pod shop/gone", "a")))
	if want := []string{"here: a", "here: b"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}
