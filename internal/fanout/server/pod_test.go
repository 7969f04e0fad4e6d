// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// TestPodWaitsForItsPolicies holds that a CNI ADD gets its pod when the fan-out has sent it, with
// the policies that select it, and not before.
func TestPodWaitsForItsPolicies(t *testing.T) {
	t.Parallel()
	c := fleet(3, 4)
	p := newPlace(t, nil)
	p.fill(c)
	young := &model.Pod{Name: model.Name{Namespace: "b", Name: "young"}, UID: "young", Node: "n1", Labels: map[string]string{"app": "x"}}
	a := newAgent(t, "n1", tokenOf("n1"), p)
	a.found(&watch.AddPod{Pod: young, UID: young.UID, Annotations: map[string]string{"k": "v"}})
	eventually(t, "the snapshot", func() bool { return a.has(t, c, "n1") })
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := a.PodForAdd(ctx, young.Name, young.UID); err == nil || !strings.Contains(err.Error(), "policies of pod b/young are not known") {
		t.Fatalf("before the fan-out has the pod: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		pod, err := a.PodForAdd(context.Background(), young.Name, young.UID)
		if err == nil && (pod.Pod.Node != "n1" || pod.Annotations["k"] != "v") {
			t.Errorf("got %+v", pod)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if pol := a.mirror.Policies[allow("b", "a", 80).ID()]; pol == nil || a.mirror.Pods.Get(young.Name) == nil {
			t.Error("the pod was returned before what selects it was handed on")
		}
		got <- err
	}()
	time.Sleep(20 * time.Millisecond)
	change(c, pods(young), p)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if !a.PodLives(young.Name, young.UID, "n1") || a.PodLives(young.Name, "other", "n1") {
		t.Error("which pod of the name lives is not known")
	}
	change(c, &model.Changes{Pods: map[model.Name]*model.Pod{young.Name: nil}}, p)
	eventually(t, "the end of the pod", func() bool { return !a.PodLives(young.Name, young.UID, "n1") })
}
