// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi/wire"
	fanoutreport "github.com/weir-net/weir/internal/fanout/report"
	"github.com/weir-net/weir/internal/localsock"
)

// TestStatusOfFanOut holds that weir status says how many replicas there are, that none of them is
// ready, and which agents none feeds.
func TestStatusOfFanOut(t *testing.T) {
	for _, c := range []struct {
		replicas, ready int32
		line            string
		fault           bool
	}{{0, 0, "", false}, {2, 2, "weir-fanout 2/2 ready", false}, {2, 0, "weir-fanout 0/2 ready", true}} {
		kube := fake.NewClientset(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "weir-fanout"},
			Status: appsv1.DeploymentStatus{Replicas: c.replicas, ReadyReplicas: c.ready}})
		r := &report{}
		if err := r.readFanOut(t.Context(), &clientset.Clients{Kube: kube}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if strings.Join(r.components, "") != c.line || (len(r.faults) > 0) != c.fault {
			t.Errorf("%d of %d: %q, faults %q", c.ready, c.replicas, r.components, r.faults)
		}
	}
	r, now := &report{}, time.Now()
	for node, at := range map[string]string{"n1": "fanout-a", "n2": "fanout-a", "n3": ""} {
		beat := metav1.NewTime(now)
		r.readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, &weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{LastHeartbeat: &beat, FanOut: at}}, now, staleAfter(3))
	}
	slices.Sort(r.fanOuts["fanout-a"])
	if got := r.fed(); !slices.Equal(got, []string{"fanout-a: 2: n1, n2", "from none: 1: n3"}) {
		t.Errorf("%q", got)
	}
}

// TestStatusOfReplicas holds what weir status says of each replica by what it reported, of those
// that have not, and that replicas that are gone are not named.
func TestStatusOfReplicas(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 10, 0, 0, time.UTC)
	at := func(r fanoutreport.Report) string {
		r.At = now.Add(-time.Second)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: deploy.Namespace, Name: name, Labels: map[string]string{"k8s-app": "weir-fanout"}}
	}
	objects := []runtime.Object{&appsv1.Deployment{ObjectMeta: meta("weir-fanout"), Status: appsv1.DeploymentStatus{Replicas: 4, ReadyReplicas: 4}},
		&corev1.ConfigMap{ObjectMeta: meta(fanoutreport.ConfigMap), Data: map[string]string{
			"weir-fanout-a": at(fanoutreport.Report{Node: "n1", Nodes: 2, Connected: true, Since: now.Add(-time.Hour), BehindMost: 7000, BehindNode: "n7", Late: 1, LateNodes: []fanoutreport.Late{{Node: "n7", BehindMs: 7000}}}),
			"weir-fanout-b": at(fanoutreport.Report{Node: "n2", Nodes: 1, Since: time.Date(2026, 11, 26, 12, 3, 4, 0, time.UTC), Error: "connection refused\nFORGED"}),
			"weir-fanout-c": "x",
			"weir-fanout-z": at(fanoutreport.Report{Node: "gone"}),
		}}}
	for _, name := range []string{"a", "b", "c", "d"} {
		objects = append(objects, &corev1.Pod{ObjectMeta: meta("weir-fanout-" + name)})
	}
	kube := fake.NewClientset(objects...)
	r := &report{}
	if err := r.readFanOut(t.Context(), &clientset.Clients{Kube: kube}, now); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"weir-fanout-a on n1: 2 nodes; behind: worst 7s (n7), median 0s; in touch with the API server since 11:10:00 (1h0m0s)",
		"waited for changes for more than 5s: n7 7s",
		"weir-fanout-b on n2: 1 nodes; behind: worst 0s, median 0s; without the API server since 12:03:04 (6m56s)",
		"fan-out weir-fanout-b is out of touch with the API server since 12:03:04 (6m56s)",
		"weir-fanout-c: its report cannot be read", "weir-fanout-d: it has not reported yet",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "weir-fanout-z") || strings.Contains(out.String(), "\nFORGED") || len(r.faults) != 2 {
		t.Errorf("faults %q in\n%s", r.faults, out.String())
	}
	kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, fanoutreport.ConfigMap, nil)
	})
	r = &report{}
	if err := r.readFanOut(t.Context(), &clientset.Clients{Kube: kube}, now); err != nil || len(r.replicas) != 1 || !strings.Contains(r.replicas[0], "verb get on ConfigMap kube-system/weir-fanout-status") {
		t.Errorf("without the right: %v, %q", err, r.replicas)
	}
}

// TestLocalStatus asks an agent by its socket, without any API server: whence it has the cluster,
// how old that is, and since when its fan-out has been without the API server.
func TestLocalStatus(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 10, 0, 0, time.UTC)
	lost := time.Date(2026, 11, 26, 12, 3, 4, 0, time.UTC)
	dir := t.TempDir()
	if err := localStatus(t.Context(), dir, time.Now, io.Discard); err == nil || !strings.Contains(err.Error(), "nobody answers") {
		t.Errorf("without an agent: %v", err)
	}
	var source wire.Source
	status, ready := weirv1.NodeStatusStatus{Dataplane: "eBPF", Endpoints: 3}, true
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.SourcePath, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(source) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		if !ready {
			http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(status)
	})
	l, err := localsock.Listen(wire.Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	defer server.Close()
	go func() { _ = server.Serve(l) }() // until it is closed
	for _, c := range []struct {
		name   string
		source wire.Source
		ready  bool
		bad    string // a condition that is not met
		lines  []string
	}{
		{"by the API server", wire.Source{Synced: true, Connected: true, Since: lost, AsOf: now}, true, "", []string{"Source: the API server", "In touch since 12:03:04 (6m56s)", "State: as of 2026-11-26 12:10:00, 0s old", "Data plane eBPF; 3 pods"}},
		{"by a fan-out", wire.Source{Fed: true, FanOut: "192.0.2.1:5473", Synced: true, Connected: true, Since: lost, AsOf: now.Add(-2 * time.Second)}, true, "",
			[]string{"Source: fan-out 192.0.2.1:5473", "as it said 2s ago", "12:09:58, 2s old"}},
		{"by a fan-out that has lost the API server", wire.Source{Fed: true, FanOut: "192.0.2.1:5473", Synced: true, Since: lost, Error: "refused", AsOf: lost}, true, "traffic and policy go on",
			[]string{"Without the API server since 12:03:04 (6m56s): refused", "State: as of 2026-11-26 12:03:04, 6m56s old", "APIServer: traffic and policy go on"}},
		{"without a fan-out", wire.Source{Fed: true, Synced: true, Since: lost, Error: "no fan-out is ready", AsOf: lost.Add(-time.Minute)}, true, "no fan-out",
			[]string{"Source: fan-outs, of which none is connected", "Out of touch since 12:03:04 (6m56s): no fan-out is ready", "12:02:04, 7m56s old"}},
		{"at its start", wire.Source{Fed: true, Since: lost, Error: "not connected yet"}, false, "", []string{"State: the cluster was not read yet", "Not ready: the agent has not read the cluster yet"}},
	} {
		source, ready, status.Conditions = c.source, c.ready, nil
		if c.bad != "" {
			status.Conditions = []weirv1.Condition{{Type: weirv1.ConditionAPIServer, Status: metav1.ConditionFalse, Message: c.bad}}
		}
		source.Node, source.Version = "n1", "v1"
		var out strings.Builder
		err := localStatus(t.Context(), dir, func() time.Time { return now }, &out)
		if healthy := c.ready && c.bad == ""; (err == nil) != healthy || !healthy && !errors.Is(err, errUnhealthy) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, want := range append(c.lines, "n1, agent v1") {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: there is no %q in\n%s", c.name, want, out.String())
			}
		}
	}
	away := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(away, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := weir(t, away, "", "status"); err == nil || !strings.Contains(err.Error(), "--local") {
		t.Errorf("where the API server does not answer: %v", err)
	}
	if _, err := weir(t, "", "", "status", "--local", "--live"); err == nil || !strings.Contains(err.Error(), "leave out") {
		t.Errorf("--local with --live: %v", err)
	}
}
