// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stest "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

func twoNodes(t *testing.T) *world { return newWorld(t, node("a", true), node("b", true)) }

func saved(*result.File) error { return nil }

// A path that never worked is an error, and what else was measured is there.
func TestNoRoundSucceeded(t *testing.T) {
	w := twoNodes(t)
	w.hook = func(_ string, s probe.Spec) error {
		if s.Test == probe.Connection {
			return errors.New("no answer")
		}
		return nil
	}
	o := Defaults()
	o.Rows, o.Rounds = []string{"pod2pod/tcp-rr", "pod2pod/crr"}, 2
	f, err := Run(t.Context(), w.Cluster, o, &listener{}, saved)
	if err == nil || err.Error() != "no round succeeded of pod2pod/crr" || f == nil || f.Interrupted != "" || len(f.Rows[0].Values[result.Mean].All) != 2 {
		t.Errorf("%v, %+v", err, f)
	}
	nothingLeft(t, w)
}

// When the pods have ended nothing more can be measured.
func TestPodEnded(t *testing.T) {
	w := twoNodes(t)
	n := 0
	w.hook = func(string, probe.Spec) error {
		if n++; n < 3 {
			return nil
		}
		list, err := w.kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		for _, p := range list.Items {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "DeadlineExceeded"
			_, failed := w.kube.CoreV1().Pods(p.Namespace).UpdateStatus(t.Context(), &p, metav1.UpdateOptions{})
			err = errors.Join(err, failed)
		}
		return errors.Join(errors.New("no such container"), err)
	}
	o := Defaults()
	o.Rows, o.Rounds = []string{"pod2pod/tcp-rr"}, 5
	f, err := Run(t.Context(), w.Cluster, o, &listener{}, saved)
	if err == nil || !strings.Contains(err.Error(), "is Failed (DeadlineExceeded)") || f == nil || f.Interrupted == "" || len(f.Rows[0].Rounds) != 3 {
		t.Errorf("%v, %+v", err, f)
	}
	nothingLeft(t, w)
}

// A namespace is removed also when the request that made it was given up; and not when the API
// server refused it.
func TestNamespaceThatIsNotSure(t *testing.T) {
	w := twoNodes(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.kube.PrependReactor("create", "namespaces", func(a k8stest.Action) (bool, runtime.Object, error) {
		n := a.(k8stest.CreateAction).GetObject().(*corev1.Namespace)
		cancel()
		return true, nil, errors.Join(ctx.Err(), w.kube.Tracker().Create(corev1.SchemeGroupVersion.WithResource("namespaces"), n, ""))
	})
	if _, err := Run(ctx, w.Cluster, Defaults(), &listener{}, saved); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	nothingLeft(t, w)

	w = twoNodes(t)
	w.kube.PrependReactor("create", "namespaces", func(k8stest.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "x", errors.New("you may not"))
	})
	w.kube.PrependReactor("delete", "namespaces", func(k8stest.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("removed what was not made")
	})
	if _, err := Run(t.Context(), w.Cluster, Defaults(), &listener{}, saved); err == nil || !strings.Contains(err.Error(), "you may not") || strings.Contains(err.Error(), "not made") {
		t.Errorf("%v", err)
	}
}

// Who may start pods may do so where Pod Security holds them to the restricted level.
func TestStartedPodsAreRestricted(t *testing.T) {
	w := twoNodes(t)
	seen := 0
	w.hook = func(_ string, s probe.Spec) error {
		seen++
		spaces, err := w.kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: Label})
		if err != nil || len(spaces.Items) != 2 {
			t.Errorf("%d namespaces, %v", len(spaces.Items), err)
		}
		for _, n := range spaces.Items {
			roles, err := w.kube.RbacV1().Roles(n.Name).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(roles.Items) != 1 {
				t.Fatalf("%d roles, %v", len(roles.Items), err)
			}
			pods := slices.Contains(roles.Items[0].Rules[0].Resources, "pods")
			level := n.Labels["pod-security.kubernetes.io/enforce"]
			if started := n.Name == s.Control.Namespace; pods != started || started != (level == "restricted") || len(roles.Items[0].Rules) > 1 && started {
				t.Errorf("%s, %s: %+v", n.Name, level, roles.Items[0].Rules)
			}
			bound, err := w.kube.RbacV1().RoleBindings(n.Name).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(bound.Items) != 1 || strings.HasSuffix(bound.Items[0].Subjects[0].Namespace, "-started") {
				t.Errorf("%+v, %v", bound, err)
			}
		}
		return errors.New("there is no API server")
	}
	o := Defaults()
	o.Rows, o.Rounds = []string{"control/pod"}, 1
	if _, err := Run(t.Context(), w.Cluster, o, &listener{}, saved); err == nil || seen != 1 {
		t.Errorf("%v, %d measurements", err, seen)
	}
	nothingLeft(t, w)
	// What a killed run left is found.
	for _, n := range []*corev1.Namespace{namespaceObject(&o, "x"), startedNamespace(&o, "x-started")} {
		if err := w.kube.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := Clean(t.Context(), w.kube, &out); err != nil || strings.Count(out.String(), "removing") != 2 {
		t.Errorf("%v, %s", err, out.String())
	}
	nothingLeft(t, w)
}

// What would measure something else than was asked for is refused.
func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"only rows of the control plane":    func(o *Options) { o.Policies = 10 },
		"IPv6 was asked for, and the first": func(o *Options) { o.IPFamily = "IPv6" },
	} {
		w := twoNodes(t)
		o := Defaults()
		o.Rows = []string{"pod2pod/crr"}
		change(&o)
		if _, err := Run(t.Context(), w.Cluster, o, &listener{}, saved); err == nil || !strings.Contains(err.Error(), want) || len(w.runs) > 0 {
			t.Errorf("%v, want %q; measured %v", err, want, w.runs)
		}
		nothingLeft(t, w)
	}
}

// Pods live as long as what they are made for.
func TestCost(t *testing.T) {
	for _, c := range []struct {
		spec  probe.Spec
		least time.Duration
	}{
		{probe.Spec{Test: probe.Stream, Duration: time.Minute}, time.Minute},
		{probe.Spec{Test: probe.HTTP, Count: 1_000_000}, 5 * time.Minute},
		{probe.Spec{Test: probe.Endpoint, Count: 1000}, 25 * time.Minute},
		{probe.Spec{Test: probe.PodStart, Count: 1000}, time.Hour},
	} {
		if got := cost(c.spec); got < c.least || got > 3*c.least {
			t.Errorf("%s: %v", c.spec.Test, got)
		}
	}
	if got := growing(&Options{Services: []int{0, 100_000}, Policies: 1000}); got < 15*time.Minute {
		t.Errorf("growing takes %v", got)
	}
	if got := seconds(100 * 365 * 24 * time.Hour); got != 1<<31-1 {
		t.Errorf("a deadline of %d s", got)
	}
}
