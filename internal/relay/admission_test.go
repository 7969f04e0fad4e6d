// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/admission"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/controller"
	"github.com/weir-net/weir/internal/objects"
)

// A real API server has what policies leave out filled in, by the manifests and with the rights
// that are installed, and goes on where nobody answers.
func TestPolicyDefaultsByAPIServer(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	o := deploy.Defaults()
	o.PolicyDefaults = true
	installed(t, s, o)
	own := s.As(controllerUser, "")
	c := controller.New(controller.Config{Kube: own.Kube, Dynamic: own.Dynamic, Log: slog.New(slog.DiscardHandler), Namespace: deploy.Namespace, PolicyDefaults: true, Grace: time.Minute, Interval: time.Second})
	apitest.Eventually(t, 0, "the controller's work", func() error { return c.Reconcile(t.Context()) })

	// Nobody listens yet.
	before := policy("NetworkPolicy", "before", map[string]any{"egress": []any{map[string]any{"action": "Allow"}}})
	s.Create(before)
	if got := stored(t, s, before); got != "tier= types=[]" {
		t.Errorf("without the controller a policy is %s", got)
	}
	serveRelay(t, own.Kube)
	apitest.Eventually(t, 0, "the webhook", func() error {
		probe := policy("NetworkPolicy", fmt.Sprint("probe-", time.Now().UnixNano()), map[string]any{})
		s.Create(probe)
		if got := stored(t, s, probe); got != "tier=default types=[Ingress]" {
			return errors.New(got)
		}
		return nil
	})
	s.Create(apitest.Object("projectcalico.org/v3", "Tier", "a", map[string]any{"order": int64(10)}))
	allow := []any{map[string]any{"action": "Allow"}}
	kubernetes := policy("StagedKubernetesNetworkPolicy", "a", map[string]any{"egress": []any{map[string]any{}}})
	for u, want := range map[*unstructured.Unstructured]string{
		policy("NetworkPolicy", "a", map[string]any{"ingress": allow, "egress": allow}):            "tier=default types=[Ingress Egress]",
		policy("GlobalNetworkPolicy", "a", map[string]any{"tier": "a", "egress": allow}):           "tier=a types=[Egress]",
		policy("StagedNetworkPolicy", "a", map[string]any{"tier": "a", "types": []any{"Ingress"}}): "tier=a types=[Ingress]",
		policy("StagedGlobalNetworkPolicy", "a", map[string]any{"stagedAction": "Delete"}):         "tier=default types=[Ingress]",
		kubernetes: "tier= types=[Ingress Egress]",
	} {
		s.Create(u)
		if got := stored(t, s, u); got != want {
			t.Errorf("%s %s: %s, want %s", u.GetKind(), u.GetName(), got, want)
		}
	}
	// The label follows the tier.
	moved := policy("GlobalNetworkPolicy", "a", nil)
	patch(t, s, moved, `{"spec":{"tier":""}}`)
	if got := stored(t, s, moved); got != "tier=default types=[Egress]" {
		t.Errorf("a policy of another tier is %s", got)
	}
	// Whoever asks learns nothing but what it sent, and what is no question is no harm.
	anybody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	url := "https://" + net.JoinHostPort(relayAddr, fmt.Sprint(relayPort)) + admission.Path
	resp, err := anybody.Post(url, "application/json", strings.NewReader("{"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("garbage has the answer %s", resp.Status)
	}
}

func policy(kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := apitest.Object("projectcalico.org/v3", kind, name, spec)
	if !strings.Contains(kind, "Global") {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	return u
}

// stored returns what is filled in of a policy.
func stored(t *testing.T, s *apitest.Server, u *unstructured.Unstructured) string {
	t.Helper()
	have, err := objects.Resource(s.Clients.Dynamic, u).Get(t.Context(), u.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of, _, _ := unstructured.NestedStringSlice(have.Object, "spec", "types")
	if u.GetKind() == "StagedKubernetesNetworkPolicy" {
		of, _, _ = unstructured.NestedStringSlice(have.Object, "spec", "policyTypes")
	}
	return fmt.Sprintf("tier=%s types=%v", have.GetLabels()["projectcalico.org/tier"], of)
}

func patch(t *testing.T, s *apitest.Server, u *unstructured.Unstructured, text string) {
	t.Helper()
	if _, err := objects.Resource(s.Clients.Dynamic, u).Patch(t.Context(), u.GetName(), types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
