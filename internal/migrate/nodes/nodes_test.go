// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/sleep"
)

func change(ds *appsv1.DaemonSet, pods ...*corev1.Pod) *Change {
	kube := fake.NewClientset(ds)
	for _, p := range pods {
		_ = kube.Tracker().Add(p)
	}
	return &Change{Clients: &clientset.Clients{Kube: kube}, Cluster: &calico.Cluster{Daemon: ds}, Out: io.Discard}
}

// TestStayAway: Calico's DaemonSet leaves nodes that have the label, whatever it asked of nodes
// before; its pods on others are not made again, and once is enough.
func TestStayAway(t *testing.T) {
	ctx := context.Background()
	zone := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}
	for name, affinity := range map[string]*corev1.Affinity{
		"none": nil,
		"two terms": {NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}, {}}}}},
	} {
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: calico.NodeDaemon}}
		ds.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		ds.Spec.Template.Spec.Affinity = affinity
		c := change(ds)
		for range 2 {
			if err := c.stayAway(ctx, "kube-system", calico.NodeDaemon); err != nil {
				t.Fatal(err)
			}
		}
		got, err := c.Clients.Kube.AppsV1().DaemonSets("kube-system").Get(ctx, calico.NodeDaemon, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			t.Errorf("%s: update strategy %s", name, got.Spec.UpdateStrategy.Type)
		}
		for _, term := range got.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			found := 0
			for _, r := range term.MatchExpressions {
				if r.Key == deploy.NetworkLabel && r.Operator == corev1.NodeSelectorOpDoesNotExist {
					found++
				}
			}
			if found != 1 {
				t.Errorf("%s: a term has %+v", name, term)
			}
		}
	}
}

// TestCompare: a pod that is gone, was made again, was started again or has another address is
// named; one that is new is none of these.
func TestCompare(t *testing.T) {
	ctx := context.Background()
	pod := func(name, ip string, restarts int32) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u-1"},
			Spec:   corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, ContainerStatuses: []corev1.ContainerStatus{{RestartCount: restarts}}}}
	}
	look := func(pods ...*corev1.Pod) map[string]string {
		t.Helper()
		out, err := change(&appsv1.DaemonSet{}, pods...).pods(ctx, "n1")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	host := pod("proxy", "192.0.2.1", 0)
	host.Spec.HostNetwork = true
	before := look(pod("web", "10.244.1.2", 3), host)
	if len(before) != 1 {
		t.Fatalf("%v", before)
	}
	if lost := compare(before, look(pod("web", "10.244.1.2", 3), pod("new", "10.244.1.3", 0))); lost != "" {
		t.Error(lost)
	}
	other := pod("web", "10.244.1.2", 3)
	other.UID = "another"
	for what, after := range map[string]map[string]string{"gone": look(), "started again": look(pod("web", "10.244.1.2", 4)),
		"another address": look(pod("web", "10.244.1.9", 3)), "made again": look(other)} {
		if lost := compare(before, after); !strings.Contains(lost, "shop/web") {
			t.Errorf("%s: %q", what, lost)
		}
	}
}

// A wait that ends says what was missing, not that its last request was cut short.
func TestAwaitSaysWhatWasMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Change{Out: io.Discard, Timeout: time.Second}
		missing := errors.New("one pod may not be evicted yet")
		err := c.await(t.Context(), "its pods have ended", func(ctx context.Context) error {
			if sleep.For(ctx, 700*time.Millisecond) != nil {
				return ctx.Err()
			}
			return missing
		})
		if !errors.Is(err, missing) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}
