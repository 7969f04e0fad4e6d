// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/hostile"
)

// leading starts a real API server and a controller with its own rights, and returns the server and
// what ends the controller.
func leading(t *testing.T) (*apitest.Server, func()) {
	t.Helper()
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
		Identity: "test", Namespace: deploy.Namespace, Grace: time.Hour, Interval: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	}
}

// kept is a kind of which the controller keeps deleted objects.
type kept struct {
	t         *testing.T
	s         *apitest.Server
	api       dynamic.ResourceInterface
	finalizer string
}

// create makes objects, and waits until the controller keeps them.
func (k kept) create(all ...*unstructured.Unstructured) {
	k.t.Helper()
	for _, u := range all {
		k.s.Create(u)
		apitest.Eventually(k.t, time.Minute, "the finalizer of "+u.GetName(), func() error {
			now, err := k.api.Get(k.t.Context(), u.GetName(), metav1.GetOptions{})
			if err == nil && !slices.Contains(now.GetFinalizers(), k.finalizer) {
				err = errors.New("it has none")
			}
			return err
		})
	}
}

func (k kept) delete(names ...string) {
	k.t.Helper()
	for _, name := range names {
		if err := k.api.Delete(k.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			k.t.Fatal(err)
		}
	}
}

func (k kept) there(name string) bool {
	k.t.Helper()
	_, err := k.api.Get(k.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		k.t.Fatal(err)
	}
	return err == nil
}

// goes waits for the end of a deleted object.
func (k kept) goes(name, why string) {
	k.t.Helper()
	apitest.Eventually(k.t, time.Minute, "the end of "+name+" "+why, func() error {
		if k.there(name) {
			return errors.New("it is still there")
		}
		return nil
	})
}

// stays waits for the event and for the condition that say that a deleted object is still used: the
// controller has looked at it.
func (k kept) stays(name, reason, condition string) {
	k.t.Helper()
	apitest.Eventually(k.t, time.Minute, "the event about "+name, func() error {
		events, err := k.s.Clients.Kube.CoreV1().Events("default").List(k.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == reason && e.InvolvedObject.Name == name }) {
			return errors.New("there is none")
		}
		return nil
	})
	apitest.Eventually(k.t, time.Minute, "the condition of "+name, func() error { return k.is(name, condition, metav1.ConditionFalse, reasonTerminating) })
}

// is reports whether an object has a condition.
func (k kept) is(name, condition string, status metav1.ConditionStatus, reason string) error {
	k.t.Helper()
	u, err := k.api.Get(k.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err // it went, and is still used
	}
	have, err := conditionsOf(u)
	if err != nil {
		return err
	}
	if len(have) != 1 || have[0].Type != condition || have[0].Status != status || have[0].Reason != reason {
		return fmt.Errorf("the conditions are %+v", have)
	}
	return nil
}

// TestHostileTierIsKept deletes tiers at a real API server, while the controller runs with its own
// rights.
func TestHostileTierIsKept(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	hostile.Record(t, "a tier is deleted under its policies", hostile.Operator, hostile.ControlPlane, hostile.Both)
	s, end := leading(t)
	k := kept{t, s, s.Clients.Dynamic.Resource(tierResource), deploy.TierFinalizer}
	for _, name := range []string{"security", "empty"} {
		k.create(apitest.Object("projectcalico.org/v3", "Tier", name, map[string]any{"order": int64(10)}))
	}
	policy := apitest.Object("projectcalico.org/v3", "NetworkPolicy", "gate", map[string]any{"tier": "security", "selector": "all()"})
	policy.SetNamespace("default")
	s.Create(policy)
	k.delete("security", "empty")
	k.goes("empty", "without policies")
	k.stays("security", "TierHasPolicies", "Ready")
	policies := s.Clients.Dynamic.Resource(tieredResources[0]).Namespace("default")
	if err := policies.Delete(t.Context(), "gate", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	k.goes("security", "after its last policy")
	end()
}

func poolObject(name, cidr string) *unstructured.Unstructured {
	return apitest.Object("projectcalico.org/v3", "IPPool", name, map[string]any{"cidr": cidr})
}

func blockObject(name, cidr string) *unstructured.Unstructured {
	return apitest.Object("weir.dev/v1", "IPAMBlock", name, map[string]any{"cidr": cidr, "node": "n1"})
}

// TestHostilePoolIsKept deletes pools, one under a block of each family.
func TestHostilePoolIsKept(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	hostile.Record(t, "a pool is deleted and gone while its pods have addresses of it", hostile.Operator, hostile.ControlPlane, hostile.Both)
	s, end := leading(t)
	k := kept{t, s, s.Clients.Dynamic.Resource(poolResource), deploy.PoolFinalizer}
	k.create(poolObject("empty", "10.64.0.0/16"), poolObject("used", "10.65.0.0/16"), poolObject("used6", "fd00:65::/64"), poolObject("balancers", "10.66.0.0/16"))
	apitest.Eventually(t, time.Minute, "the status of a pool", func() error { return k.is("used", conditionAllocatable, metav1.ConditionTrue, reasonAllocatable) })
	balancers := apitest.Object("weir.dev/v1", "IPAMBlock", "10-66-0-0-26", map[string]any{"cidr": "10.66.0.0/26", "node": weirv1.LoadBalancers,
		"allocations": []any{map[string]any{"address": "10.66.0.7", "service": "shop/web", "uid": "uid-1"}}})
	s.Create(balancers)
	shown := func(r schema.GroupVersionResource, name string) {
		t.Helper()
		apitest.Eventually(t, time.Minute, "what clients see of load balancers", func() error {
			_, err := s.Clients.Dynamic.Resource(r).Get(t.Context(), name, metav1.GetOptions{})
			return err
		})
	}
	shown(ipamv3.IPAMBlocks, "10-66-0-0-26")
	shown(ipamv3.BlockAffinities, "load-balancer-10-66-0-0-26")
	shown(ipamv3.IPAMHandles, strings.ToLower("lb-KiDoLvquRUGKZw6Mn4oTyTfTNefzU40vw4plVTdUU"))
	blocks := map[string]*unstructured.Unstructured{"balancers": balancers, "used": blockObject("10-65-0-0-26", "10.65.0.0/26"),
		"used6": blockObject("fd00-0065-0000-0000-0000-0000-0000-0000-122", "fd00:65::/122")}
	for _, b := range blocks {
		s.Create(b)
	}
	k.delete("empty", "used", "used6", "balancers")
	k.goes("empty", "without blocks")
	for name, b := range blocks {
		k.stays(name, "PoolHasAddresses", conditionAllocatable)
		if err := s.Clients.Dynamic.Resource(weirv1.IPAMBlocks).Delete(t.Context(), b.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		k.goes(name, "after its last block")
	}
	end()
}

// TestHostilePoolIsNotKeptByNode: what a node claims of a pool after it was deleted does not keep
// it. The API server's times have seconds, so the objects are the fake's.
func TestHostilePoolIsNotKeptByNode(t *testing.T) {
	hostile.Record(t, "a node keeps a deleted pool for ever by blocks that it goes on to claim", hostile.Node, hostile.ControlPlane, hostile.Both)
	deleted := metav1.NewTime(time.Unix(1000, 0))
	for _, tt := range []struct {
		after time.Duration
		kept  bool
	}{{-time.Second, true}, {0, true}, {time.Second, false}} {
		pool, block := poolObject("gone", "10.65.0.0/16"), blockObject("10-65-0-0-26", "10.65.0.0/26")
		pool.SetFinalizers([]string{deploy.PoolFinalizer})
		pool.SetDeletionTimestamp(&deleted)
		block.SetCreationTimestamp(metav1.NewTime(deleted.Add(tt.after)))
		f := newFixture(t)
		if _, err := f.dynamic.Resource(weirv1.IPAMBlocks).Create(t.Context(), block, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		users, err := f.addressesOfPools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if user, err := users(pool); err != nil || (user != "") != tt.kept {
			t.Errorf("%s after the deletion: %q, %v", tt.after, user, err)
		}
	}
}

// TestPoolIsKeptByPods: a pod may have an address of a pool alongside its blocks, where an
// IPReservation holds it, or routeSource is WorkloadIPs.
func TestPoolIsKeptByPods(t *testing.T) {
	for _, tt := range []struct {
		addr      string
		phase     corev1.PodPhase
		workloads bool
		kept      bool
	}{{"10.65.9.9", corev1.PodRunning, false, true}, {"10.65.9.9", corev1.PodSucceeded, false, false}, {"10.66.9.9", corev1.PodRunning, false, false},
		{"10.65.8.8", corev1.PodRunning, true, true}} {
		if got := poolUser(t, podWith(tt.addr, "n1", tt.phase), tt.workloads); (got != "") != tt.kept {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// poolUser returns what keeps the pool 10.65.0.0/16, which was deleted at the second 1000, in a
// cluster of one pod and an IPReservation of 10.65.9.0/24.
func poolUser(t *testing.T, pod *corev1.Pod, workloads bool) string {
	t.Helper()
	pool, deleted := poolObject("gone", "10.65.0.0/16"), metav1.Unix(1000, 0)
	pool.SetDeletionTimestamp(&deleted)
	f := newFixture(t, pod)
	if workloads {
		f.cfg.Environ = []string{"FELIX_ROUTESOURCE=WorkloadIPs"}
	}
	reservation := apitest.Object("projectcalico.org/v3", "IPReservation", "static", map[string]any{"reservedCIDRs": []any{"10.65.9.0/24"}})
	if _, err := f.dynamic.Resource(reservationResource).Create(t.Context(), reservation, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	users, err := f.addressesOfPools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	user, err := users(pool)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// TestHostilePoolIsNotKeptByPodsOfNode: what the status of a pod says is its node's word, so an
// address of a deleted pool there keeps the pool only where an administrator grants it, and the pod
// was there before.
func TestHostilePoolIsNotKeptByPodsOfNode(t *testing.T) {
	for name, tt := range map[string]struct {
		addr    string
		created int64
	}{
		"a node keeps a deleted pool for ever by an address in the status of an old pod":      {"10.65.8.8", 500},
		"a node keeps a deleted pool for ever by pods that have its reserved addresses later": {"10.65.9.9", 1001},
	} {
		t.Run(name, func(t *testing.T) {
			hostile.Record(t, name, hostile.Node, hostile.ControlPlane, hostile.Both)
			pod := podWith(tt.addr, "n1", corev1.PodRunning)
			pod.CreationTimestamp = metav1.Unix(tt.created, 0)
			if got := poolUser(t, pod, false); got != "" {
				t.Errorf("kept by %s", got)
			}
		})
	}
}

// TestPoolInsideAnother: what another pool has as well does not keep a deleted one, such as a pool
// that was refused because it overlaps.
func TestPoolInsideAnother(t *testing.T) {
	twin := poolObject("twin", "10.65.64.0/18")
	deleted := metav1.Now()
	twin.SetDeletionTimestamp(&deleted)
	for cidr, kept := range map[string]bool{"10.65.0.0/16": false, "10.65.64.0/20": true, "10.66.0.0/16": true} {
		f := newFixture(t, podWith("10.65.99.9", "n1", corev1.PodRunning))
		for resource, u := range map[schema.GroupVersionResource]*unstructured.Unstructured{
			poolResource: poolObject("default", cidr), weirv1.IPAMBlocks: blockObject("10-65-65-0-26", "10.65.65.0/26"),
			reservationResource: apitest.Object("projectcalico.org/v3", "IPReservation", "static", map[string]any{"reservedCIDRs": []any{"10.65.99.0/24"}})} {
			if _, err := f.dynamic.Resource(resource).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		users, err := f.addressesOfPools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if user, err := users(twin); err != nil || (user != "") != kept {
			t.Errorf("alongside a pool of %s: %q, %v", cidr, user, err)
		}
	}
}
