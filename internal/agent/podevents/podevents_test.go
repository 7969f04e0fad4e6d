// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/model"
)

var errWaits = errors.New("the policies of the pod are not known: no fan-out has sent them (connection refused)")

// run has a writer work until the returned function.
func run(t *testing.T, api dynamic.Interface) (*Writer, func()) {
	t.Helper()
	w := New(api, "n1", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	return w, func() { cancel(); <-done }
}

// TestFewWrites holds that a pod that waits for long costs few writes, that a node with many such
// pods does not cost many more, and that who calls is not kept.
func TestFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		w, stop := run(t, fake)
		defer stop()
		began := time.Now()
		for range 4 * 60 { // the kubelet tries every fifteen seconds
			w.Waits(model.Name{Namespace: "a", Name: "web"}, "1", errWaits)
			time.Sleep(15 * time.Second)
		}
		if n := len(fake.Actions()); n != 12 {
			t.Errorf("%d writes in an hour about one pod", n)
		}
		fake.ClearActions()
		for i := range 100 * 60 {
			w.Waits(model.Name{Namespace: "b", Name: fmt.Sprint("web-", i%100)}, fmt.Sprint(i%100), errWaits)
			time.Sleep(600 * time.Millisecond)
		}
		if n := len(fake.Actions()); n == 0 || n > burst+1+int(time.Since(began)/writeEvery) {
			t.Errorf("%d writes in an hour about a hundred pods", n)
		}
		for range 10_000 {
			w.Waits(model.Name{Namespace: "c", Name: "web"}, "1", errWaits)
		}
	})
}

// TestReasons holds that what is not in force of a pod is said though the pod waits as well.
func TestReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		w, stop := run(t, fake)
		defer stop()
		pod := model.Name{Namespace: "a", Name: "web"}
		for range 2 {
			w.Waits(pod, "1", errWaits)
			w.NotInForce(pod, "1", []weirv1.Problem{{Field: "metadata.annotations[x]", Value: "1", Message: "has no effect"}})
			synctest.Wait()
		}
		var got []string
		for _, a := range fake.Actions() {
			if c, ok := a.(clienttesting.CreateAction); ok {
				reason, _, _ := unstructured.NestedString(c.GetObject().(*unstructured.Unstructured).Object, "reason")
				got = append(got, reason)
			}
		}
		if len(got) != 2 || got[0] != ReasonWaits || got[1] != weirv1.ReasonNotInForce {
			t.Errorf("events %v", got)
		}
	})
}

// TestDescribe holds that what `kubectl describe pod` shows has the event, once, with the rights
// and under the policies of admission that agents are installed with, and over a restart of the
// agent.
func TestDescribe(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	api := apitest.Start(t)
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if u.GetName() == "weir-node" && strings.HasPrefix(u.GetKind(), "ClusterRole") || u.GetName() == "weir-node-own-events" {
			api.Create(u)
		}
	}
	kube := api.Clients.Kube.CoreV1()
	if _, err := kube.ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := kube.Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown := func(count int32) func() error {
		return func() error {
			// As kubectl asks.
			list, err := kube.Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=web,involvedObject.namespace=default,involvedObject.kind=Pod,involvedObject.uid=" + string(pod.UID)})
			if err != nil {
				return err
			}
			if len(list.Items) != 1 {
				return fmt.Errorf("%d events", len(list.Items))
			}
			e := list.Items[0]
			if e.Count != count || e.Reason != ReasonWaits || e.Type != corev1.EventTypeWarning || e.Source.Host != "n1" || !strings.HasPrefix(e.Message, errWaits.Error()) || e.LastTimestamp.IsZero() {
				return fmt.Errorf("%+v", e)
			}
			return nil
		}
	}
	agent := api.As("system:serviceaccount:kube-system:weir-node", "n1").Dynamic
	name, uid := model.Name{Namespace: "default", Name: "web"}, string(pod.UID)
	w, stop := run(t, agent)
	// Rights count some moments after they were written: what cannot be written is left out, and
	// the kubelet tries again.
	apitest.Eventually(t, time.Minute, "the event", func() error {
		w.Waits(name, uid, errWaits)
		return shown(1)()
	})
	stop()
	a, now := about{pod: name, uid: uid, reason: ReasonWaits, message: errWaits.Error()}, time.Now()
	s, err := w.write(t.Context(), a, said{}, now) // another agent, which does not know of it
	if err != nil {
		t.Fatal(err)
	}
	if err := shown(1)(); err != nil {
		t.Error(err)
	}
	s.first = now
	if s, err = w.write(t.Context(), a, s, now.Add(againAfter)); err != nil {
		t.Fatal(err)
	}
	if err := shown(2)(); err != nil {
		t.Error(err)
	}
	// The API server forgets events after an hour.
	if err := kube.Events("default").Delete(t.Context(), eventName(a), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.write(t.Context(), a, s, now.Add(2*againAfter)); err != nil {
		t.Fatal(err)
	}
	if err := shown(1)(); err != nil {
		t.Error(err)
	}
}
