// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/watch"
)

// object is one of the API server's.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// fakeAPI has these objects.
func fakeAPI(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	kinds := map[schema.GroupVersionResource]string{{Group: "projectcalico.org", Version: "v3", Resource: "tiers"}: "TierList"}
	for _, k := range watch.PolicyKinds() {
		kinds[k.Resource] = strings.TrimSuffix(k.Kind, ".projectcalico.org") + "List"
	}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
}

// Tiers and policies come in the order of evaluation, rules with the names that verdicts have for
// them.
func TestPolicies(t *testing.T) {
	t.Parallel()
	api := fakeAPI(
		object(t, `{"apiVersion":"projectcalico.org/v3","kind":"Tier","metadata":{"name":"security"},"spec":{"order":100,"defaultAction":"Pass"}}`),
		object(t, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"clients","namespace":"db"},"spec":{"podSelector":{"matchLabels":{"app":"pg"}},
			"ingress":[{"from":[{"podSelector":{}}]},{"ports":[{"port":5432}]}]}}`),
		object(t, `{"apiVersion":"projectcalico.org/v3","kind":"NetworkPolicy","metadata":{"name":"first","namespace":"db"},"spec":{"order":1,"selector":"app == 'pg'","types":["Egress"],"egress":[{"action":"Log"},{"action":"Deny"}]}}`),
		object(t, `{"apiVersion":"projectcalico.org/v3","kind":"GlobalNetworkPolicy","metadata":{"name":"all"},"spec":{"tier":"security","order":5,"ingress":[{"action":"Pass"}]}}`),
		object(t, `{"apiVersion":"projectcalico.org/v3","kind":"GlobalNetworkPolicy","metadata":{"name":"lost"},"spec":{"tier":"nowhere"}}`),
		object(t, `{"apiVersion":"projectcalico.org/v3","kind":"StagedNetworkPolicy","metadata":{"name":"next","namespace":"db"},"spec":{"order":2,"ingress":[{"action":"Allow"}]}}`),
		object(t, `{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":"admin"},"spec":{"tier":"Admin","priority":3,"subject":{"namespaces":{}},
			"egress":[{"name":"dns","action":"Accept","to":[{"namespaces":{}}]}]}}`),
	)
	// This cluster has no AdminNetworkPolicies, and one staged kind may not be listed.
	refuse := func(resource string, code int) {
		api.PrependReactor("list", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewGenericServerResponse(code, "list", a.GetResource().GroupResource(), "", "", 0, true)
		})
	}
	refuse("adminnetworkpolicies", http.StatusNotFound)
	refuse("stagedkubernetesnetworkpolicies", http.StatusForbidden)
	u := &User{Clients: &clientset.Clients{Clients: &client.Clients{Dynamic: api}}}
	got, err := u.Policies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, tier := range got.Tiers {
		lines = append(lines, fmt.Sprintf("tier %s pass %t known %t", tier.Name, tier.Pass, tier.Known))
		for _, p := range tier.Policies {
			lines = append(lines, fmt.Sprintf("%s %s staged %t %v: %s", p.Kind, p.Name, p.Staged, p.Types, p.Subject))
			for _, r := range p.Rules {
				lines = append(lines, "  "+r.Detail+" "+r.Action+" "+strings.ReplaceAll(r.Text, "\n", "|"))
			}
		}
	}
	want := []string{
		"tier security pass true known true",
		"GlobalNetworkPolicy all staged false [Ingress]: all pods",
		"  ingress[0] Pass action: Pass",
		"tier kube-admin pass true known true",
		"ClusterNetworkPolicy admin staged false [Egress]: subject: {\"namespaces\":{}}",
		"  egress[0] \"dns\" Allow action: Accept|name: dns|to:|- namespaces: {}",
		"tier default pass false known true",
		"NetworkPolicy.projectcalico.org db/first staged false [Egress]: selector: app == 'pg'",
		"  egress[0] Log action: Log",
		"  egress[1] Deny action: Deny",
		"StagedNetworkPolicy db/next staged true [Ingress]: all pods of namespace db",
		"  ingress[0] Allow action: Allow",
		"NetworkPolicy db/clients staged false [Ingress]: podSelector: {\"matchLabels\":{\"app\":\"pg\"}}",
		"  ingress[0] Allow from:|- podSelector: {}",
		"  ingress[1] Allow ports:|- port: 5432",
		"tier nowhere pass false known false",
		"GlobalNetworkPolicy lost staged false [Ingress]: all pods",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if len(got.Missing) != 1 || !strings.Contains(got.Missing[0], "StagedKubernetesNetworkPolicy: the right to list") {
		t.Errorf("missing: %q", got.Missing)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Errorf("an order without an end has no JSON: %v", err)
	}
}

// Where no store answers all nodes are asked; one that does not answer is told among them, also
// when none does.
func TestRecords(t *testing.T) {
	t.Parallel()
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	away := errors.New("away")
	none := func(context.Context, wire.Question, io.Writer) error { return agentapi.ErrNoStore }
	records := Recorded{&clientset.Clients{Kube: kube}, none, func(_ context.Context, node string, q wire.Question, out io.Writer) error {
		if node == "n2" || !strings.Contains(q.Path, "denied=true") {
			return away
		}
		_, err := io.WriteString(out, `{"node":"n1","verdict":"denied","end":"2026-01-02T03:04:05Z"}`+"\n"+`{"status":{"node":"n1"}}`+"\n")
		return err
	}}
	found, err := records.Records(t.Context(), flows.Filter{Denied: true}, 10)
	if err != nil || len(found.Flows) != 1 || len(found.Nodes) != 2 || found.Nodes[0].Err != nil || !errors.Is(found.Nodes[1].Err, away) {
		t.Errorf("%+v %v", found, err)
	}
	if found, err := records.Records(t.Context(), flows.Filter{}, 10); err != nil || len(found.Flows) != 0 || found.Nodes[0].Err == nil {
		t.Errorf("%+v %v", found, err)
	}
	if !strings.Contains(found.From, "no store of flow records answers") {
		t.Errorf("asked: %s", found.From)
	}
	stored := records
	stored.AskStore = func(_ context.Context, q wire.Question, out io.Writer) error {
		if !strings.Contains(q.Path, "limit=10") {
			return away
		}
		_, err := io.WriteString(out, `{"node":"n3","verdict":"allowed","end":"2026-01-02T03:04:06Z"}`+"\n"+`{"node":"n3","verdict":"denied","end":"2026-01-02T03:04:05Z"}`+"\n"+
			`{"store":{"records":9,"oldest":"2026-01-01T00:00:00Z","more":true,"lost":{"full":3}}}`+"\n")
		return err
	}
	found, err = stored.Records(t.Context(), flows.Filter{}, 10)
	if err != nil || len(found.Flows) != 2 || found.Flows[0].Verdict != "denied" || !found.More || found.Oldest.IsZero() || found.From != "the store of flow records" ||
		len(found.Missing) != 1 || len(found.Nodes) != 0 {
		t.Errorf("%+v %v", found, err)
	}
	stored.AskStore = func(context.Context, wire.Question, io.Writer) error { return away }
	if found, err = stored.Records(t.Context(), flows.Filter{Denied: true}, 10); err != nil || len(found.Flows) != 1 || len(found.Missing) != 1 || !strings.Contains(found.Missing[0], "does not answer: away") {
		t.Errorf("%+v %v", found, err)
	}
	records.Ask = func(context.Context, string, wire.Question, io.Writer) error { return agentapi.ErrNoRight }
	if _, err := records.Records(t.Context(), flows.Filter{}, 10); !errors.Is(err, ui.ErrNoRight) {
		t.Errorf("%v", err)
	}
	kube.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no"))
	})
	if _, err := records.Records(t.Context(), flows.Filter{}, 10); !errors.Is(err, ui.ErrNoRight) {
		t.Errorf("%v", err)
	}
}

func TestWhy(t *testing.T) {
	t.Parallel()
	u := New(&clientset.Clients{Kube: fake.NewClientset()}, &agentapi.Client{}, nil)
	for _, q := range []ui.Question{{}, {Source: "a/b"}, {Target: "a/b:80"}} {
		if _, err := u.Why(t.Context(), q); !errors.Is(err, ui.ErrQuestion) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := u.Why(t.Context(), ui.Question{Source: "cart", Target: "shop/db:5432"}); err == nil || !strings.Contains(err.Error(), "shop/db") && !strings.Contains(err.Error(), "default/cart") {
		t.Errorf("%v", err)
	}
}
