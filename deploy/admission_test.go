// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/apitest"
)

// warnings keeps what the API server warns of.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warnings) drain() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.all = nil }()
	return strings.Join(w.all, "; ")
}

// TestWhatIsWrittenIsChecked tries what testdata/policies.yaml has at a real API server: what is
// wrong is refused, or warned of, with the name of the field.
func TestWhatIsWrittenIsChecked(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	said := &warnings{}
	cfg := rest.CopyConfig(s.Config)
	cfg.WarningHandler = said
	api, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	resources := install(t, api)
	text, err := os.ReadFile("testdata/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	try := func(i int, doc []byte) string {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetAPIVersion("projectcalico.org/v3")
		u.SetName(fmt.Sprint("p", i))
		r := resources[u.GetKind()]
		var to dynamic.ResourceInterface = api.Resource(r.gvr)
		if r.namespaced {
			to = api.Resource(r.gvr).Namespace("default")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		said.drain()
		if _, err := to.Create(ctx, &u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return "refused: " + err.Error()
		}
		if w := said.drain(); w != "" && !strings.Contains(w, "is stored but not enforced") {
			return "warned: " + w
		}
		return "taken"
	}
	docs := bytes.Split(text, []byte("---\n"))
	if len(docs) < 40 {
		t.Fatalf("%d documents", len(docs))
	}
	for i, doc := range docs {
		want, _, _ := strings.Cut(strings.TrimPrefix(string(doc), "# "), "\n")
		verb, field, _ := strings.Cut(want, ": ")
		// A policy of admission counts some moments after it was written.
		apitest.Eventually(t, time.Minute, fmt.Sprintf("document %d", i), func() error {
			if got := try(i, doc); !strings.HasPrefix(got, verb) || !strings.Contains(got, field) {
				return fmt.Errorf("%s\nwant %s, got %s", doc, want, got)
			}
			return nil
		})
	}
}

// resource is where objects of a kind are.
type resource struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

// install makes the kinds and the policies of admission of projectcalico.org, and returns the
// kinds' resources.
func install(t *testing.T, api dynamic.Interface) map[string]resource {
	t.Helper()
	objects, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]schema.GroupVersionResource{
		"CustomResourceDefinition":         {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		"ValidatingAdmissionPolicy":        {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
		"ValidatingAdmissionPolicyBinding": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	}
	out := map[string]resource{}
	for _, u := range objects {
		gvr, ok := places[u.GetKind()]
		if !ok {
			continue
		}
		if _, err := api.Resource(gvr).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
		if group, _, _ := unstructured.NestedString(u.Object, "spec", "group"); group == "projectcalico.org" {
			kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
			plural, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
			scope, _, _ := unstructured.NestedString(u.Object, "spec", "scope")
			out[kind] = resource{schema.GroupVersionResource{Group: group, Version: "v3", Resource: plural}, scope == "Namespaced"}
		}
	}
	return out
}
