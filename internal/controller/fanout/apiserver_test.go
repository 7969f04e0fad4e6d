// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/hostile"
)

const controllerUser = "system:serviceaccount:kube-system:weir-controller"

// world is an API server with the rights and bounds of the controller, and the fan-out's
// Deployment. Nothing carries Deployments out: the test makes their pods.
type world struct {
	*apitest.Server
	t          *testing.T
	deployment *appsv1.Deployment
	set        *appsv1.ReplicaSet
}

func newWorld(t *testing.T) *world {
	w := &world{Server: apitest.Start(t), t: t}
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		switch kind := u.GetKind(); {
		case kind == "ServiceAccount", strings.HasPrefix(kind, "Role"), strings.HasPrefix(kind, "ClusterRole"), strings.HasPrefix(kind, "ValidatingAdmission"),
			kind == "Deployment" && u.GetName() == names.Name:
			w.Create(u)
		}
	}
	if w.deployment, err = w.Clients.Kube.AppsV1().Deployments(deploy.Namespace).Get(t.Context(), names.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	w.set = w.replicaSet("weir-fanout-1", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: names.Name, UID: w.deployment.UID, Controller: ptr.To(true)})
	return w
}

func (w *world) replicaSet(name string, owner metav1.OwnerReference) *appsv1.ReplicaSet {
	w.t.Helper()
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"of": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"of": name}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	set, err := w.Clients.Kube.AppsV1().ReplicaSets(deploy.Namespace).Create(w.t.Context(), set, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return set
}

func (w *world) ownedBy(set *appsv1.ReplicaSet) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}}
}

// pod makes a pod of the fan-out on a node, with what change makes of it, that is ready.
func (w *world) pod(name string, change func(*corev1.Pod), ips ...string) {
	w.t.Helper()
	p := replica(name, ips...)
	p.OwnerReferences = w.ownedBy(w.set)
	if change != nil {
		change(p)
	}
	pods, status := w.Clients.Kube.CoreV1().Pods(p.Namespace), p.Status
	p, err := pods.Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	p.Status = status
	if _, err := pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// run looks after the fan-out with the rights of the controller until the returned function.
func (w *world) run(nodes int) (c *Controller, stop func()) {
	c = New(Config{Kube: w.As(controllerUser, "").Kube, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Namespace: deploy.Namespace,
		MinNodes: MinNodes{nodes: DefaultMinNodes}, Interval: time.Hour}) // so that events alone bring changes
	c.SetNodes(nodes)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	return c, func() { cancel(); <-done }
}

// want waits until a slice has these addresses, "-" where there is none.
func (w *world) want(slice, addrs string) {
	w.t.Helper()
	apitest.Eventually(w.t, 20*time.Second, slice+" with "+addrs, func() error {
		s, err := w.Clients.Kube.DiscoveryV1().EndpointSlices(deploy.Namespace).Get(w.t.Context(), slice, metav1.GetOptions{})
		var got []string
		switch {
		case apierrors.IsNotFound(err):
			got = []string{"-"}
		case err != nil:
			return err
		}
		for _, e := range s.Endpoints {
			got = append(got, *e.NodeName+"="+strings.Join(e.Addresses, "+"))
		}
		if text := strings.Join(got, " "); text != addrs {
			return fmt.Errorf("it has %q", text)
		}
		return nil
	})
}

func (w *world) wantReplicas(want int32) {
	w.t.Helper()
	apitest.Eventually(w.t, 20*time.Second, fmt.Sprint(want, " replicas"), func() error {
		d, err := w.Clients.Kube.AppsV1().Deployments(deploy.Namespace).Get(w.t.Context(), names.Name, metav1.GetOptions{})
		if err == nil && *d.Spec.Replicas != want {
			err = fmt.Errorf("there are %d", *d.Spec.Replicas)
		}
		return err
	})
}

// With the rights of the controller, and no others.
func TestFanOutOfCluster(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	w := newWorld(t)
	w.wantReplicas(1) // as a Deployment begins that names no number
	c, stop := w.run(99)
	w.wantReplicas(0)
	c.SetNodes(1001)
	w.wantReplicas(3)
	w.want(names.Slice, "-")

	w.pod("a", nil, "192.0.2.1", "2001:db8::1")
	w.want(names.Slice, "n-a=192.0.2.1")
	w.want(names.Slice6, "n-a=2001:db8::1")
	w.pod("b", nil, "192.0.2.2")
	w.want(names.Slice, "n-a=192.0.2.1 n-b=192.0.2.2")
	s, err := w.Clients.Kube.DiscoveryV1().EndpointSlices(deploy.Namespace).Get(t.Context(), names.Slice, metav1.GetOptions{})
	if err != nil || len(s.Ports) != 1 || *s.Ports[0].Name != "fanout" || *s.Ports[0].Port != names.Port || *s.Ports[0].Protocol != "TCP" ||
		s.Labels["endpointslice.kubernetes.io/managed-by"] != "weir-controller" || s.OwnerReferences[0].UID != w.deployment.UID || !*s.Endpoints[0].Conditions.Ready {
		t.Errorf("the slice is %+v (%v)", s, err)
	}

	// A pod that is not ready any more, and one that is gone.
	pods := w.Clients.Kube.CoreV1().Pods(deploy.Namespace)
	unready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	if _, err := pods.Patch(t.Context(), "a", types.StrategicMergePatchType, unready, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.want(names.Slice, "n-b=192.0.2.2")
	w.want(names.Slice6, "")
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		t.Fatal(err)
	}
	w.want(names.Slice, "")

	// Another leader goes on from what is there.
	stop()
	w.pod("c", nil, "192.0.2.3")
	_, stop = w.run(950)
	defer stop()
	w.want(names.Slice, "n-c=192.0.2.3")
	w.wantReplicas(3)
}

// Somebody may write labels of any pods of the namespace, or has pods of another one.
func TestHostilePodsThatAreNoFanOut(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	hostile.Record(t, "what has the labels of the fan-out, and is none, is named to agents as a fan-out", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	w := newWorld(t)
	w.Create(apitest.Object("v1", "Namespace", "shop", nil))
	account := apitest.Object("v1", "ServiceAccount", names.Name, nil)
	account.SetNamespace("shop")
	w.Create(account)
	other := w.replicaSet("other", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "other", UID: "1", Controller: ptr.To(true)})
	before := w.replicaSet("before", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: names.Name, UID: "2", Controller: ptr.To(true)})
	_, stop := w.run(1000)
	defer stop()
	for name, change := range map[string]func(*corev1.Pod){
		"other-namespace":  func(p *corev1.Pod) { p.Namespace = "shop" },
		"no-owner":         func(p *corev1.Pod) { p.OwnerReferences = nil },
		"other-owner":      func(p *corev1.Pod) { p.OwnerReferences = w.ownedBy(other) },
		"owner-before":     func(p *corev1.Pod) { p.OwnerReferences = w.ownedBy(before) },
		"owner-uid":        func(p *corev1.Pod) { p.OwnerReferences[0].UID = "3" },
		"owner-gone":       func(p *corev1.Pod) { p.OwnerReferences[0].Name = "gone" },
		"owner-kind":       func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" },
		"owner-group":      func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" },
		"owner-not-alone":  func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		"own-network":      func(p *corev1.Pod) { p.Spec.HostNetwork = false },
		"other-account":    func(p *corev1.Pod) { p.Spec.ServiceAccountName = "weir-node" },
		"not-on-a-node":    func(p *corev1.Pod) { p.Spec.NodeName = "" },
		"without-a-status": func(p *corev1.Pod) { p.Status.Conditions = nil },
	} {
		w.pod(name, change, "198.51.100.7")
	}
	w.pod("z", nil, "192.0.2.1") // after all of these
	w.want(names.Slice, "n-z=192.0.2.1")
	w.pod("zz", nil, "192.0.2.2")
	w.want(names.Slice, "n-z=192.0.2.1 n-zz=192.0.2.2")
}
