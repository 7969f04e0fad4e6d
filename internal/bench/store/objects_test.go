// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestStored holds where objects are put, and that they are read back as they were.
func TestStored(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "x", Labels: map[string]string{"a": "b"}}
	alone := metav1.ObjectMeta{Name: "x", Labels: meta.Labels}
	for key, o := range map[string]runtime.Object{
		"/registry/namespaces/x":         &corev1.Namespace{ObjectMeta: alone},
		"/registry/minions/x":            &corev1.Node{ObjectMeta: alone},
		"/registry/pods/ns/x":            &corev1.Pod{ObjectMeta: meta},
		"/registry/networkpolicies/ns/x": &networkingv1.NetworkPolicy{ObjectMeta: meta},
	} {
		p, err := stored(o)
		if err != nil || string(p.Request.Key) != key {
			t.Errorf("%T is put at %s: %v", o, p.Request.Key, err)
			continue
		}
		back, _, err := scheme.Codecs.UniversalDeserializer().Decode(p.Request.Value, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if m := back.(metav1.Object); m.GetName() != "x" || m.GetLabels()["a"] != "b" {
			t.Errorf("%s is read back as %+v", key, m)
		}
	}
	block := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "weir.dev/v1", "kind": "IPAMBlock", "metadata": map[string]any{"name": "x"}}}
	p, err := stored(block)
	if err != nil || string(p.Request.Key) != "/registry/weir.dev/ipamblocks/x" || !json.Valid(p.Request.Value) {
		t.Errorf("a block is put at %s as %s: %v", p.Request.Key, p.Request.Value, err)
	}
	block.SetNamespace("ns")
	for _, o := range []runtime.Object{block, &corev1.Secret{}} {
		if p, err := stored(o); err == nil {
			t.Errorf("%T is put at %s", o, p.Request.Key)
		}
	}
}

// TestRemovePolicies holds what etcd is asked to remove, and in how many transactions.
func TestRemovePolicies(t *testing.T) {
	t.Parallel()
	var sizes []int
	removed := map[string]bool{}
	etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Success []struct {
				Delete *struct {
					Key []byte `json:"key"`
				} `json:"requestDeleteRange"`
			} `json:"success"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		for _, op := range asked.Success {
			if op.Delete == nil {
				t.Errorf("an operation removes nothing: %+v", asked.Success)
				continue
			}
			removed[string(op.Delete.Key)] = true
		}
		sizes = append(sizes, len(asked.Success))
	}))
	defer etcd.Close()
	s := Store{URL: etcd.URL, HTTP: etcd.Client()}
	if err := s.RemovePolicies(t.Context(), func(yield func(types.NamespacedName) bool) {
		for i := range transaction + 1 {
			if !yield(types.NamespacedName{Namespace: "ns", Name: string(rune('a' + i))}) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 2 || sizes[0] != transaction || sizes[1] != 1 || len(removed) != transaction+1 || !removed["/registry/networkpolicies/ns/a"] {
		t.Errorf("transactions of %d, %d keys", sizes, len(removed))
	}
}
