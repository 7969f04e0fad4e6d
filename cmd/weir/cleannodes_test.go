// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/hostile"
)

// cleaned is a cluster of three nodes, of which so many become clean.
func cleaned(ready int32) *fake.Clientset {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "daemonsets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		ds := a.(clienttesting.CreateAction).GetObject().(*appsv1.DaemonSet)
		ds.Status = appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 3, NumberReady: ready}
		return false, nil, nil
	})
	return kube
}

// TestCleanNodes: each node is cleaned up by a pod that needs nothing of what is removed, and what
// does that is removed when all are done.
func TestCleanNodes(t *testing.T) {
	kube := cleaned(3)
	var out bytes.Buffer
	if err := cleanNodes(context.Background(), &out, kube, "registry/weir:1", time.Minute); err != nil || !strings.Contains(out.String(), "3 nodes") {
		t.Errorf("%v, %q", err, out.String())
	}
	if _, err := kube.AppsV1().DaemonSets(deploy.Namespace).Get(context.Background(), cleanDaemon, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the DaemonSet is still there: %v", err)
	}
	kube = cleaned(2)
	if err := cleanNodes(context.Background(), &out, kube, "registry/weir:1", 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("with a node that is not clean: %v", err)
	}
	spec := cleanUpDaemon("registry/weir:1").Spec.Template.Spec
	if !spec.HostNetwork || len(spec.InitContainers) != 1 || len(spec.InitContainers[0].VolumeMounts) != len(spec.Volumes) || *spec.AutomountServiceAccountToken {
		t.Errorf("%+v", spec)
	}
	if _, err := imageOf(context.Background(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "--image") {
		t.Errorf("without agents: %v", err)
	}
}

// TestHostileCleanUpThatWasInterrupted: what goes on cleaning nodes up is gone before something is
// installed again, with its pods.
func TestHostileCleanUpThatWasInterrupted(t *testing.T) {
	hostile.Record(t, "a clean-up that was interrupted goes on to remove what was installed since", hostile.Operator, hostile.ControlPlane, hostile.Both)
	kube := cleaned(2)
	var out bytes.Buffer
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	if err := cleanNodes(interrupted, &out, kube, "registry/weir:1", time.Minute); err == nil || !strings.Contains(err.Error(), "DaemonSet weir-clean-up is still there") {
		t.Errorf("interrupted: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "weir-clean-up-x", Labels: cleanUpDaemon("").Labels}, Spec: corev1.PodSpec{NodeName: "n3"}}
	if _, err := kube.CoreV1().Pods(deploy.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	install := &installFlags{Options: deploy.Defaults()}
	install.APIServerHost, install.APIServerPort = "192.0.2.10", "6443"
	clients := &clientset.Clients{Clients: &client.Clients{Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())}, Kube: kube}
	if err := install.install(short, &out, clients); err == nil || !strings.Contains(err.Error(), "still on nodes n3") {
		t.Errorf("installed alongside a pod that cleans up: %v", err)
	}
	if _, err := kube.AppsV1().DaemonSets(deploy.Namespace).Get(t.Context(), cleanDaemon, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the DaemonSet is still there: %v", err)
	}
	if err := kube.CoreV1().Pods(deploy.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := endCleanUp(t.Context(), &out, kube); err != nil {
		t.Errorf("when the pod is gone: %v", err)
	}
}
