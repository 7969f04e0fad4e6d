// SPDX-License-Identifier: Apache-2.0

// Package podevents writes Events about pods that wait for the agent, and about what of a pod has
// no effect, so that `kubectl describe pod` says so. The kubelet writes the CNI plugin's error,
// too, but among all others of the pod's sandbox, and words of its own first.
package podevents

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

const (
	// Component is who an event says that it is from; an admission policy names it, too.
	Component = "weir-agent"
	// ReasonWaits says that a pod is not started because no fan-out can be reached.
	ReasonWaits = "WaitsForFanOut"
)

// Bounds of what one agent writes. Where no fan-out can be reached, pods of many nodes wait.
const (
	againAfter  = 5 * time.Minute // between two writes about one pod
	forgetAfter = time.Hour       // as the API server does
	burst       = 10
	writeEvery  = 10 * time.Second // in the long run
	mostPods    = 1024
	writeWithin = 10 * time.Second
)

// Writer writes events. It is safe for concurrent use.
type Writer struct {
	events dynamic.NamespaceableResourceInterface
	node   string
	log    *slog.Logger
	queue  chan about
	limit  *rate.Limiter
}

// about is what is to be said of a pod.
type about struct {
	pod     model.Name
	uid     string
	reason  string
	message string
}

// New returns a Writer for a node; nothing is written before Run.
func New(api dynamic.Interface, node string, log *slog.Logger) *Writer {
	return &Writer{events: api.Resource(corev1.SchemeGroupVersion.WithResource("events")), node: node, log: log, queue: make(chan about, 64),
		limit: rate.NewLimiter(rate.Every(writeEvery), burst)}
}

// Waits says why a pod waits. It does not wait itself: where too much is to be said, it is not.
func (w *Writer) Waits(pod model.Name, uid string, why error) {
	w.say(about{pod, uid, ReasonWaits, weirv1.Clip(why.Error()+"; it is started when a fan-out can be reached", weirv1.MaxProblemMessage)})
}

// NotInForce says what of a pod has no effect; as Waits, it does not wait. No problem is nothing to
// say.
func (w *Writer) NotInForce(pod model.Name, uid string, found []weirv1.Problem) {
	if len(found) == 0 {
		return
	}
	words := make([]string, len(found))
	for i, p := range found {
		words[i] = p.WithoutObject()
	}
	w.say(about{pod, uid, weirv1.ReasonNotInForce, weirv1.Clip(strings.Join(words, "; "), weirv1.MaxProblemMessage)})
}

func (w *Writer) say(a about) {
	select {
	case w.queue <- a:
	default:
	}
}

// said is what was said of a pod.
type said struct {
	first, last time.Time // first is zero where another process wrote the event
	count       int32
}

// Run writes until ctx ends. What cannot be written, as while the API server is away, is left out:
// the kubelet tries again to start the pod.
func (w *Writer) Run(ctx context.Context) error {
	pods := map[about]said{} // without message
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-w.queue:
			now := time.Now()
			key := about{pod: a.pod, uid: a.uid, reason: a.reason}
			before, had := pods[key]
			if had && now.Sub(before.last) < againAfter || !w.limit.Allow() {
				continue
			}
			maps.DeleteFunc(pods, func(_ about, s said) bool { return now.Sub(s.last) >= forgetAfter })
			if len(pods) >= mostPods {
				continue
			}
			write, cancel := context.WithTimeout(ctx, writeWithin)
			after, err := w.write(write, a, before, now)
			cancel()
			if err != nil {
				if ctx.Err() == nil {
					w.log.Warn("cannot write an event about a pod", "pod", a.pod.String(), "err", err)
				}
				continue
			}
			pods[key] = after
		}
	}
}

// write says something of a pod for the first time, or that it is still so.
func (w *Writer) write(ctx context.Context, a about, before said, now time.Time) (said, error) {
	after := said{first: before.first, last: now, count: before.count + 1}
	events := w.events.Namespace(a.pod.Namespace)
	if before.count > 0 {
		err := w.again(ctx, a, after)
		if !apierrors.IsNotFound(err) {
			return after, err
		}
		after.count = 1 // the event is gone: this is a new one
	}
	after.first = now
	e := &corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Name: eventName(a), Namespace: a.pod.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: a.pod.Namespace, Name: a.pod.Name,
			UID: types.UID(a.uid)},
		Reason: a.reason, Message: a.message, Type: corev1.EventTypeWarning, FirstTimestamp: metav1.NewTime(now), LastTimestamp: metav1.NewTime(now), Count: 1,
		Source: corev1.EventSource{Component: Component, Host: w.node},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(e)
	if err != nil {
		return before, fmt.Errorf("encode an event: %w", err)
	}
	_, err = events.Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // of the agent before this one
		after.first = time.Time{}
		return after, w.again(ctx, a, after)
	}
	return after, err
}

func (w *Writer) again(ctx context.Context, a about, s said) error {
	change := map[string]any{"message": a.message, "lastTimestamp": metav1.NewTime(s.last)}
	if !s.first.IsZero() {
		change["count"] = s.count
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	_, err = w.events.Namespace(a.pod.Namespace).Patch(ctx, eventName(a), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// eventName is one for each pod and reason, so that an agent that starts again goes on with the
// same event.
func eventName(a about) string {
	h := fnv.New64a()
	h.Write([]byte(a.uid))
	kind := "waits"
	if a.reason == weirv1.ReasonNotInForce {
		kind = "not-in-force"
	}
	return fmt.Sprintf("%.200s.%s-%x", a.pod.Name, kind, h.Sum64())
}
