// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/deploy"
)

// TestKernelIsAsked: where pools have IP in IP a node's kernel is asked for the device while Calico
// still runs there. One that has none leaves the node as it is, with what the pod said.
func TestKernelIsAsked(t *testing.T) {
	const says = "this kernel has no device"
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "weir-node"}}
	ds.Spec.Template.Spec.NodeSelector = map[string]string{deploy.NetworkLabel: deploy.NetworkWeir}
	ds.Spec.Template.Spec.Containers = []corev1.Container{{Image: "weir:1"}}
	left := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: askPod + "n1"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	for name, phase := range map[string]corev1.PodPhase{"it has one": corev1.PodSucceeded, "it has none": corev1.PodFailed} {
		c := change(ds, left)
		c.Timeout = 5 * time.Second
		c.Cluster.Objects = []*unstructured.Unstructured{{Object: map[string]any{"kind": "IPPool", "spec": map[string]any{"ipipMode": "Always"}}}}
		kube := c.Clients.Kube.(*fake.Clientset)
		if err := kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
			t.Fatal(err)
		}
		var asked *corev1.Pod
		kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked = a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
			asked.Status.Phase = phase
			asked.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: says}}}}
			return false, nil, nil
		})
		err := c.kernelHasIPIP(t.Context(), "n1")
		if asked == nil || asked.Spec.NodeName != "n1" || asked.Spec.Containers[0].Image != "weir:1" {
			t.Fatalf("%s: %+v, %v", name, asked, err)
		}
		if (phase == corev1.PodSucceeded) != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if pods, listErr := kube.CoreV1().Pods(deploy.Namespace).List(t.Context(), metav1.ListOptions{}); listErr != nil || len(pods.Items) != 0 {
			t.Errorf("%s: %d pods are left, %v", name, len(pods.Items), listErr)
		}
		if err == nil {
			continue
		}
		if err := c.Forward(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "node n1") {
			t.Errorf("%s: %v", name, err)
		}
		if n, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || len(n.Labels) != 0 {
			t.Errorf("%s: the node has the labels %v, %v", name, n.Labels, err)
		}
	}
}
