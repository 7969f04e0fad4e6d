// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/weir-net/weir/internal/nettest"
)

const container = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u-1",
		Annotations: map[string]string{annotationContainer: container, annotationAddrs: "10.244.1.2/32"}},
		Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.2"}}
	if change != nil {
		change(p)
	}
	return p
}

func TestForeign(t *testing.T) {
	f, err := foreign(pod("web", nil))
	if err != nil || f.ContainerID != container || len(f.Addrs) != 1 || f.Addrs[0].String() != "10.244.1.2" || f.UID != "u-1" || f.Pod.Name != "web" {
		t.Fatalf("%+v, %v", f, err)
	}
	for what, change := range map[string]func(*corev1.Pod){
		"of the node's network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"ended":                 func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"without an address yet": func(p *corev1.Pod) {
			p.Annotations, p.Status.PodIP = nil, ""
		},
		"half": func(p *corev1.Pod) { delete(p.Annotations, annotationAddrs) },
	} {
		if f, err := foreign(pod("web", change)); f != nil || err != nil {
			t.Errorf("%s: %+v, %v", what, f, err)
		}
	}
	if f, err := foreign(pod("web", func(p *corev1.Pod) { p.Annotations = nil })); err != nil || f.ContainerID != "" || len(f.Addrs) != 1 {
		t.Errorf("a pod that Weir started: %+v, %v", f, err)
	}
	for what, change := range map[string]func(*corev1.Pod){
		"a container with a slash": func(p *corev1.Pod) { p.Annotations[annotationContainer] = "kube-system/coredns" },
		"a network":                func(p *corev1.Pod) { p.Annotations[annotationAddrs] = "10.244.0.0/16" },
		"IPv6":                     func(p *corev1.Pod) { p.Annotations[annotationAddrs] = "10.244.1.2/32,fd00::2/128" },
	} {
		if f, err := foreign(pod("web", change)); err == nil || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("%s: %+v, %v", what, f, err)
		}
	}
}

// TestFelixFirst: nothing is taken over while Felix runs on the node, and nothing is set aside.
func TestFelixFirst(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "10-calico.conflist")
	if err := os.WriteFile(conf, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	open := func(objects ...runtime.Object) *Node {
		n := Open([]string{Environment + "=" + Plugin}, "n1", dir, fake.NewSimpleDynamicClient(scheme.Scheme, objects...), slog.New(slog.DiscardHandler))
		if n == nil || n.Ready() == nil {
			t.Fatal("the node is not taken over, or pods start before it is")
		}
		return n
	}
	felix := pod("calico-node-1", func(p *corev1.Pod) {
		p.Labels, p.Spec.HostNetwork = map[string]string{"k8s-app": nodeDaemon}, true
	})
	if err := open(felix).Begin(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "calico-node-1") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(conf); err != nil {
		t.Error(err)
	}
	// A pod of somebody else that has Felix's label is none.
	other := pod("calico-node-1", func(p *corev1.Pod) { p.Labels = map[string]string{"k8s-app": nodeDaemon} })
	if pods, err := open(other).pods(context.Background()); err != nil || len(pods) != 1 {
		t.Errorf("%+v, %v", pods, err)
	}
	if err := open().setAside(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(conf + Aside); err != nil {
		t.Error(err)
	}
	nettest.Run(t, func(string) error { return errors.Join(Leave(), Forget(dir)) })
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	if n := Open(nil, "n1", dir, nil, nil); n != nil || n.Ready() != nil || n.Begin(context.Background(), nil) != nil || n.Run(context.Background(), nil) != nil || n.Blocks(nil) != nil {
		t.Error("a node of its own is taken over")
	}
}
