package controller

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/hostile"
)

// TestHostileTierIsKept deletes tiers at a real API server, while the controller runs with its own rights.
func TestHostileTierIsKept(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	hostile.Record(t, "a tier is deleted under its policies", hostile.Operator, hostile.ControlPlane, hostile.Both)
	s := apitest.Start(t)
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if k := u.GetKind(); k != "DaemonSet" && k != "Deployment" && k != "PodDisruptionBudget" {
			s.Create(u)
		}
	}
	own := s.As("system:serviceaccount:kube-system:weir-controller", "")
	c := New(Config{Kube: own.Kube, Dynamic: own.Dynamic, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Identity: "test", Namespace: deploy.Namespace, Grace: time.Minute, Interval: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()

	tier := func(name string) *unstructured.Unstructured {
		return apitest.Object("projectcalico.org/v3", "Tier", name, map[string]any{"order": int64(10)})
	}
	api := s.Clients.Dynamic.Resource(tierResource)
	for _, name := range []string{"security", "empty"} {
		s.Create(tier(name))
		apitest.Eventually(t, 10*time.Second, "the finalizer of "+name, func() error {
			u, err := api.Get(ctx, name, metav1.GetOptions{})
			if err == nil && !slices.Contains(u.GetFinalizers(), deploy.TierFinalizer) {
				err = errors.New("it has none")
			}
			return err
		})
	}
	gone := func(name string) func() error {
		return func() error {
			_, err := api.Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				err = errors.New("it is still there")
			} else if apierrors.IsNotFound(err) {
				err = nil
			}
			return err
		}
	}
	policy := apitest.Object("projectcalico.org/v3", "NetworkPolicy", "gate", map[string]any{"tier": "security", "selector": "all()"})
	policy.SetNamespace("default")
	s.Create(policy)
	for _, name := range []string{"security", "empty"} {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Eventually(t, 10*time.Second, "the end of a tier without policies", gone("empty"))
	apitest.Eventually(t, 10*time.Second, "the event about the other", func() error {
		events, err := s.Clients.Kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "TierHasPolicies" && e.InvolvedObject.Name == "security"
		}) {
			return errors.New("there is none")
		}
		return nil
	})
	if gone("security")() == nil {
		t.Error("the tier went, and its policy has no place")
	}
	policies := s.Clients.Dynamic.Resource(tieredResources[0]).Namespace("default")
	if err := policies.Delete(ctx, "gate", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, 10*time.Second, "the end of the tier after its last policy", gone("security"))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}
