// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/hostile"
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
	if _, err := a.PodForAdd(ctx, young.Name, young.UID); !errors.Is(err, client.ErrPodWaits) || !strings.Contains(err.Error(), "policies of the pod are not known") {
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

// known is what the watch of a fan-out has of pods.
type known struct {
	mu   sync.Mutex
	pods map[model.Name]*watch.AddPod
}

func (k *known) find(name model.Name, uid string) *watch.AddPod {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[name]; p != nil && (uid == "" || p.UID == uid) {
		return p
	}
	return nil
}

func (k *known) put(p *watch.AddPod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods == nil {
		k.pods = map[model.Name]*watch.AddPod{}
	}
	k.pods[p.Pod.Name] = p
}

func addPod(pod *model.Pod, mark string) *watch.AddPod {
	return &watch.AddPod{Pod: pod, UID: pod.UID, Annotations: map[string]string{"pod": mark}, NamespaceAnnotations: map[string]string{"namespace": mark + "\xff"},
		Namespace: &model.Namespace{Name: pod.Name.Namespace, Labels: map[string]string{"label": mark}}}
}

// TestPodWithoutAPIServer holds that a pod that the kubelet starts while the API server is away is
// what the fan-out says of it, and that the API server is not asked while the fan-out has the pod.
func TestPodWithoutAPIServer(t *testing.T) {
	t.Parallel()
	c, k := fleet(3, 4), &known{}
	p := newPlace(t, func(cfg *Config) { cfg.Pod = k.find })
	p.fill(c)
	p.setStatus(watch.Status{Synced: true, Since: time.Now(), Err: "connection refused"})
	p.lookupAfter = time.Hour
	a := newAgent(t, "n1", tokenOf("n1"), p)
	a.away(errors.New("connection refused"))
	eventually(t, "the snapshot", func() bool { return a.has(t, c, "n1") })
	young := &model.Pod{Name: model.Name{Namespace: "b", Name: "young"}, UID: "second", Node: "n1"}
	before := *young
	before.UID = "first"
	for _, v := range []*model.Pod{&before, young} {
		change(c, pods(v), p)
		k.put(addPod(v, v.UID))
		for _, uid := range []string{v.UID, ""} { // as a CNI ADD asks, one after the other
			got, err := a.PodForAdd(context.Background(), v.Name, uid)
			if err != nil {
				t.Fatal(err)
			}
			want := addPod(v, v.UID)
			if got.Pod.UID != v.UID || got.UID != v.UID || !maps.Equal(got.Annotations, want.Annotations) || !maps.Equal(got.NamespaceAnnotations, want.NamespaceAnnotations) ||
				!maps.Equal(got.Namespace.Labels, want.Namespace.Labels) {
				t.Errorf("asked for %q: got %+v", uid, got)
			}
		}
	}
	if n := a.lookups(); n != 0 {
		t.Errorf("the API server was asked %d times", n)
	}
	// Neither has it: the pod waits, and what keeps it is said.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := a.PodForAdd(ctx, model.Name{Namespace: "b", Name: "other"}, "x")
	if !errors.Is(err, client.ErrPodWaits) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a pod that nobody knows: %v", err)
	}
	// The API server is back, and says that there is none.
	p.lookupAfter = time.Millisecond
	a = newAgent(t, "n2", tokenOf("n2"), p)
	a.away(apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "other"))
	if _, err := a.PodForAdd(context.Background(), model.Name{Namespace: "b", Name: "other"}, "x"); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is gone: %v", err)
	}
}

// What a node is told of pods is of those that the API places there.
func TestHostileQuestionsAboutPods(t *testing.T) {
	hostile.Record(t, "a compromised node asks a fan-out for the annotations of pods of other nodes, or keeps it busy with questions", hostile.Node, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	c, k := fleet(3, 4), &known{}
	p := newPlace(t, func(cfg *Config) { cfg.Pod = k.find })
	own, other := c.Pods.Get(model.Name{Namespace: "b", Name: "pod-0-1"}), c.Pods.Get(model.Name{Namespace: "b", Name: "pod-1-1"})
	young := &model.Pod{Name: model.Name{Namespace: "b", Name: "young"}, UID: "young"}
	for _, v := range []*model.Pod{own, other, young} {
		k.put(addPod(v, "secret"))
	}
	p.fill(c)
	s := p.raw(t, tokenOf("n0"))
	if err := s.Send(&stream.Request{Endpoints: &stream.Endpoints{}}); err != nil {
		t.Fatal(err)
	}
	received(t, s)
	ask := &stream.Request{}
	for _, v := range []*model.Pod{other, young, own} {
		ask.Pods = append(ask.Pods, &stream.PodQuestion{Namespace: []byte(v.Name.Namespace), Name: []byte(v.Name.Name)})
	}
	ask.Pods = append(ask.Pods, &stream.PodQuestion{Name: []byte(strings.Repeat("x", 100_000))})
	for range 10 * maxPods {
		ask.Pods = append(ask.Pods, ask.Pods[2])
	}
	if err := s.Send(ask); err != nil {
		t.Fatal(err)
	}
	var answers []*stream.PodAnswer
	for len(answers) < maxPods {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, resp.Pods...)
	}
	for i, v := range []*model.Pod{other, young, own} {
		if got := answers[i]; string(got.Question.Name) != v.Name.Name || (len(got.Uid) > 0) != (v == own) || (len(got.Annotations) > 0) != (v == own) {
			t.Errorf("told of pod %s: %v", v.Name, got)
		}
	}
	for _, got := range answers {
		if len(got.Question.Name) > 1000 {
			t.Error("a name that none can have was looked for")
		}
	}
}
