// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/internal/policy/defaults"
)

// ask sends an object of a resource to a handler, as the API server does.
func ask(t *testing.T, url, resource, object string) *admissionv1.AdmissionResponse {
	t.Helper()
	in := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "1", Object: runtime.RawExtension{Raw: []byte(object)}}}
	in.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	in.Request.Resource.Resource = resource
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	code, answer := post(t, url, body)
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(answer, &out); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	if out.GroupVersionKind() != in.GroupVersionKind() || out.Response == nil || out.Response.UID != "1" || !out.Response.Allowed {
		t.Fatalf("the answer is %s", answer)
	}
	return out.Response
}

func post(t *testing.T, url string, body []byte) (int, []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func TestChanges(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(Handler())
	defer server.Close()
	const (
		label    = `{"op":"add","path":"/metadata/labels/projectcalico.org~1tier","value":"%s"}`
		labels   = `{"op":"add","path":"/metadata/labels","value":{"projectcalico.org/tier":"%s"}}`
		types    = `{"op":"add","path":"/spec/types","value":[%s]}`
		in, out  = `"Ingress"`, `"Egress"`
		complete = `{"metadata":{"labels":{"projectcalico.org/tier":"default"}},"spec":{"types":["Egress"]}}`
	)
	f := fmt.Sprintf
	for _, c := range []struct{ name, resource, object, want string }{
		{"no rules", "networkpolicies", `{"metadata":{},"spec":{}}`, f(types, in) + "," + f(labels, "default")},
		{"ingress", "globalnetworkpolicies", `{"metadata":{"labels":{"a":"b"}},"spec":{"ingress":[{"action":"Allow"}]}}`, f(types, in) + "," + f(label, "default")},
		{"egress", "stagednetworkpolicies", `{"metadata":{"labels":{}},"spec":{"tier":"a","egress":[{}],"ingress":[]}}`, f(types, out) + "," + f(label, "a")},
		{"both", "stagedglobalnetworkpolicies", `{"metadata":{"labels":{"projectcalico.org/tier":"a"}},"spec":{"tier":"a","types":[],"egress":[{}],"ingress":[{}]}}`, f(types, in+","+out)},
		{"the label of another tier", "networkpolicies", `{"metadata":{"labels":{"projectcalico.org/tier":"a"}},"spec":{"types":["Ingress"]}}`, f(label, "default")},
		{"no spec", "networkpolicies", `{"metadata":{}}`, f(labels, "default")},
		{"nothing is missing", "networkpolicies", complete, ""},
		{"a tier that is no label", "networkpolicies", f(`{"metadata":{},"spec":{"types":["Ingress"],"tier":"%s"}}`, strings.Repeat("a", 64)), ""},
		{"Kubernetes', ingress", "stagedkubernetesnetworkpolicies", `{"metadata":{},"spec":{}}`, `{"op":"add","path":"/spec/policyTypes","value":["Ingress"]}`},
		{"Kubernetes', egress", "stagedkubernetesnetworkpolicies", `{"metadata":{},"spec":{"egress":[{}]}}`, `{"op":"add","path":"/spec/policyTypes","value":["Ingress","Egress"]}`},
		{"Kubernetes', complete", "stagedkubernetesnetworkpolicies", `{"metadata":{},"spec":{"egress":[{}],"policyTypes":["Egress"]}}`, ""},
		{"another kind", "tiers", `{"metadata":{},"spec":{}}`, ""},
		{"a spec that is none", "networkpolicies", `{"metadata":{},"spec":"x"}`, ""},
		{"rules that are none", "networkpolicies", `{"metadata":{},"spec":{"ingress":{"a":1}}}`, ""},
	} {
		r := ask(t, server.URL, c.resource, c.object)
		want := ""
		if c.want != "" {
			want = "[" + c.want + "]"
		}
		if string(r.Patch) != want || (r.PatchType != nil) != (want != "") {
			t.Errorf("%s: %s, want %s", c.name, r.Patch, want)
		}
	}
}

// Anybody may send anything: what is no AdmissionReview, or is too large, has no answer, and the
// next request is answered.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(Handler())
	defer server.Close()
	for what, body := range map[string]string{
		"nothing": "", "garbage": "\x00\xff{", "no request": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"another version": `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`,
		"too large":       `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"` + strings.Repeat("1", maxBody) + `"}}`,
	} {
		if code, answer := post(t, server.URL, []byte(body)); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, code, answer)
		}
	}
	for range 2 * atATime { // nobody keeps a turn
		if r := ask(t, server.URL, "networkpolicies", `{"metadata":{},"spec":{}}`); len(r.Patch) == 0 {
			t.Error("nothing is filled in")
		}
	}
}

// FuzzReview: whatever is sent, an answer allows, changes nothing but these fields, and leaves
// nothing to fill in.
func FuzzReview(f *testing.F) {
	for _, object := range []string{`{"metadata":{},"spec":{}}`, `{"metadata":{"labels":{"a":"b"}},"spec":{"egress":[{}],"tier":"a~/b"}}`, `{"spec":null}`, `[]`, `{"metadata":{"labels":null},"spec":{"types":[null]}}`} {
		for _, resource := range []string{"networkpolicies", "stagedkubernetesnetworkpolicies"} {
			f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","resource":{"resource":"` + resource + `"},"object":` + object + `}}`))
		}
	}
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, body []byte) {
		text, err := review(body)
		if err != nil {
			return
		}
		var out admissionv1.AdmissionReview
		if err := json.Unmarshal(text, &out); err != nil || out.Response == nil || !out.Response.Allowed {
			t.Fatalf("the answer is %s: %v", text, err)
		}
		var changes []change
		if len(out.Response.Patch) > 0 {
			if err := json.Unmarshal(out.Response.Patch, &changes); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range changes {
			switch c.Path {
			case "/spec/types", "/spec/policyTypes":
				if n := len(c.Value.([]any)); n != 1 && n != 2 {
					t.Fatalf("the types are %v", c.Value)
				}
			case "/metadata/labels":
				if m := c.Value.(map[string]any); len(m) != 1 || m[defaults.TierLabel] == "" {
					t.Fatalf("the labels are %v", m)
				}
			case "/metadata/labels/projectcalico.org~1tier":
			default:
				t.Fatalf("%s is changed", c.Path)
			}
		}
	})
}
