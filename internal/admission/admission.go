// SPDX-License-Identifier: Apache-2.0

// Package admission is the webhook that fills in what a policy of projectcalico.org leaves out, as
// Calico's API server does: its types, and the label with the name of its tier. The API server asks
// it where one is missing, and goes on without it where it does not answer. What it answers follows
// from the object alone, so it does not matter who asks. Readers of policies apply the same
// defaults (internal/policy/defaults): it is for clients that look for these fields.
package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weir-net/weir/internal/policy/defaults"
)

const (
	// Path is where the controller serves it.
	Path = "/admission/policy-defaults"
	// Configuration is the name of the MutatingWebhookConfiguration, and Webhook that of its entry.
	Configuration = "weir-policy-defaults"
	Webhook       = "policy-defaults.weir.dev"
)

// Bounds of requests: anybody who reaches the port may send some.
const (
	// maxBody has room for the largest object that etcd takes (1.5 MiB) and for the one before.
	maxBody = 4 << 20
	// atATime are the requests that are read and answered at a time; others wait.
	atATime = 8
	// readWithin bounds the time for which a request is read, and takes the place of one of those.
	// The API server waits for 2 s (deploy/manifests/61-policy-defaults.yaml.tmpl).
	readWithin = time.Second
)

// Handler answers AdmissionReviews.
func Handler() http.Handler {
	turns := make(chan struct{}, atATime)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case turns <- struct{}{}:
		case <-req.Context().Done():
			return
		}
		defer func() { <-turns }()
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(readWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
		if err != nil {
			http.Error(w, "the request was not read: "+err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := review(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // who asked may have gone
	})
}

// request is what is read of an AdmissionReview.
type request struct {
	metav1.TypeMeta `json:",inline"`
	Request         *struct {
		UID      types.UID                   `json:"uid"`
		Resource metav1.GroupVersionResource `json:"resource"`
		Object   json.RawMessage             `json:"object"`
	} `json:"request"`
}

// review answers an AdmissionReview. It allows every object, and changes those that it can read:
// whether others may be stored is for the API server to say.
func review(body []byte) ([]byte, error) {
	var in request
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("the request is not an AdmissionReview: %w", err)
	}
	if in.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") || in.Request == nil {
		return nil, fmt.Errorf("the request is not an AdmissionReview of %s with a request in it", admissionv1.SchemeGroupVersion)
	}
	out := &admissionv1.AdmissionResponse{UID: in.Request.UID, Allowed: true}
	var p policy
	if err := json.Unmarshal(in.Request.Object, &p); err == nil {
		if changes := p.changes(in.Request.Resource.Resource); len(changes) > 0 {
			if out.Patch, err = json.Marshal(changes); err != nil {
				return nil, fmt.Errorf("write the changes: %w", err)
			}
			kind := admissionv1.PatchTypeJSONPatch
			out.PatchType = &kind
		}
	}
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: in.TypeMeta, Response: out})
}

// policy is what is read of a policy. Of rules it counts how many there are.
type policy struct {
	Metadata struct {
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec *struct {
		Tier        string     `json:"tier"`
		Types       []string   `json:"types"`
		PolicyTypes []string   `json:"policyTypes"`
		Ingress     []struct{} `json:"ingress"`
		Egress      []struct{} `json:"egress"`
	} `json:"spec"`
}

// change is an operation of a JSON patch (RFC 6902).
type change struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// labelPath escapes a label in the path of a change (RFC 6901).
var labelPath = strings.NewReplacer("~", "~0", "/", "~1")

// changes are what is to be filled in; none for a kind that is not known here.
func (p *policy) changes(resource string) (out []change) {
	add := func(path string, value any) { out = append(out, change{"add", path, value}) }
	switch resource {
	case "stagedkubernetesnetworkpolicies":
		if p.Spec != nil && len(p.Spec.PolicyTypes) == 0 {
			add("/spec/policyTypes", directions(defaults.KubernetesDirections(len(p.Spec.Egress))))
		}
		return out // these have no tier of their own
	case "networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies":
	default:
		return nil
	}
	tier := defaults.Tier("")
	if p.Spec != nil {
		tier = defaults.Tier(p.Spec.Tier)
		if len(p.Spec.Types) == 0 {
			add("/spec/types", directions(defaults.Directions(len(p.Spec.Ingress), len(p.Spec.Egress))))
		}
	}
	switch {
	case p.Metadata.Labels[defaults.TierLabel] == tier, len(validation.IsValidLabelValue(tier)) > 0: // with such a label the object would be refused
	case p.Metadata.Labels == nil:
		add("/metadata/labels", map[string]string{defaults.TierLabel: tier})
	default:
		add("/metadata/labels/"+labelPath.Replace(defaults.TierLabel), tier)
	}
	return out
}

// directions are written as the types of a policy.
func directions(ingress, egress bool) []string {
	var out []string
	if ingress {
		out = append(out, "Ingress")
	}
	if egress {
		out = append(out, "Egress")
	}
	return out
}
