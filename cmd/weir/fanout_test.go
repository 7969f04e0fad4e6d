// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
)

// TestStatusOfFanOut holds that weir status says how many replicas there are, that none of them is
// ready, and which agents none feeds.
func TestStatusOfFanOut(t *testing.T) {
	for _, c := range []struct {
		replicas, ready int32
		line            string
		fault           bool
	}{{0, 0, "", false}, {2, 2, "weir-fanout 2/2 ready", false}, {2, 0, "weir-fanout 0/2 ready", true}} {
		kube := fake.NewClientset(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "weir-fanout"},
			Status: appsv1.DeploymentStatus{Replicas: c.replicas, ReadyReplicas: c.ready}})
		r := &report{}
		if err := r.readFanOut(t.Context(), &clientset.Clients{Kube: kube}); err != nil {
			t.Fatal(err)
		}
		if strings.Join(r.components, "") != c.line || (len(r.faults) > 0) != c.fault {
			t.Errorf("%d of %d: %q, faults %q", c.ready, c.replicas, r.components, r.faults)
		}
	}
	r, now := &report{}, time.Now()
	for node, at := range map[string]string{"n1": "fanout-a", "n2": "fanout-a", "n3": ""} {
		beat := metav1.NewTime(now)
		r.readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, &weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{LastHeartbeat: &beat, FanOut: at}}, now, staleAfter(3))
	}
	slices.Sort(r.fanOuts["fanout-a"])
	if got := r.fed(); !slices.Equal(got, []string{"fanout-a: 2: n1, n2", "from none: 1: n3"}) {
		t.Errorf("%q", got)
	}
}
