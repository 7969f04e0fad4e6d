// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
)

const controllerUser = "system:serviceaccount:kube-system:weir-controller"

// With the rights of the controller, and no others.
func TestLabel(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	w := apitest.Start(t)
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if kind := u.GetKind(); kind == "CustomResourceDefinition" || kind == "ServiceAccount" || strings.HasPrefix(kind, "Role") || strings.HasPrefix(kind, "ClusterRole") || strings.HasPrefix(kind, "ValidatingAdmission") {
			w.Create(u)
		}
	}
	nodes := w.Clients.Kube.CoreV1().Nodes()
	add := func(name string, labels map[string]string) {
		t.Helper()
		if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(of string) {
		t.Helper()
		apitest.Eventually(t, 60*time.Second, "labels "+of, func() error {
			list, err := nodes.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			var got []string
			for _, n := range list.Items {
				v, ok := n.Labels[Label]
				got = append(got, fmt.Sprintf("%s=%s%v", n.Name, v, ok))
			}
			if text := strings.Join(got, " "); text != of {
				return fmt.Errorf("there are %s", text)
			}
			return nil
		})
	}
	add("a", map[string]string{"rack": "1"})
	add("b", map[string]string{Label: "never"})
	as := w.As(controllerUser, "")
	c := New(Config{Kube: as.Kube, Dynamic: as.Dynamic, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Interval: 500 * time.Millisecond, Linger: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()

	gvr := v3.SchemeGroupVersion.WithResource("bgppeers")
	peer := apitest.Object("projectcalico.org/v3", "BGPPeer", "tor", map[string]any{"peerIP": "192.0.2.9", "asNumber": int64(64999)})
	w.Create(peer)
	want("a=truetrue b=nevertrue")
	add("c", nil)
	want("a=truetrue b=nevertrue c=truetrue")
	if err := w.Clients.Dynamic.Resource(gvr).Delete(t.Context(), "tor", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("a=false b=nevertrue c=false")
	w.Create(apitest.Object("projectcalico.org/v3", "BGPConfiguration", "node.a", map[string]any{"listenPort": int64(1179)}))
	w.Create(apitest.Object("projectcalico.org/v3", "BGPConfiguration", "default", map[string]any{}))
	want("a=truetrue b=nevertrue c=truetrue")

	// Its right is for that label alone.
	for what, patch := range map[string]string{"another label": `{"metadata":{"labels":{"rack":"2"}}}`, "no label": `{"metadata":{"labels":{"rack":null}}}`,
		"an annotation": `{"metadata":{"annotations":{"x":"y"}}}`, "a taint": `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`,
		"a finalizer": `{"metadata":{"finalizers":["example.com/x"]}}`} {
		if _, err := as.Kube.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("the controller writes %s of a Node: %v", what, err)
		}
	}
}
