package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/deploy"
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

// TestCleanNodes: each node is cleaned up by a pod that needs nothing of what is removed, and what does that is removed when all are done.
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
