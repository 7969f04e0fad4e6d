// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/names"
)

// flows asks all nodes for records of connections.
func (l *lab) flows(t *testing.T, args ...string) ([]flows.Flow, error) {
	t.Helper()
	c := l.command(t.Context(), "exec", append([]string{"client1", "--", filepath.Join(l.bin, "weir"), "flows", "-o", "json"}, args...)...)
	out, err := output(c, "")
	if err != nil {
		return nil, err
	}
	var all []flows.Flow
	for line := range strings.Lines(out) {
		var f flows.Flow
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// TestFlowRecords switches flow records on and off under an open connection. While they are on,
// nodes keep what a client did by a Service, with the rule that let it, and what policy denied.
func TestFlowRecords(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	open := b.client(1).begin(t, "stream", at(cpAddr, nodePort2+nodeEcho))
	b.policy(t, "recorded", `{podSelector: {matchLabels: {pod: srv1}}, ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
	b.cli2.soon(t, at(b.srv1.addr, whoPort), false)
	b.patchFelix(t, `{"flowLogsLocalReporter":"Enabled","flowLogsFlushInterval":"1s"}`, "flowLogsLocalReporter", "flowLogsFlushInterval")
	cli1, cli2, srv1, rule := b.ns+"/cli1", b.ns+"/cli2", b.ns+"/srv1", "NetworkPolicy "+b.ns+"/recorded"
	for _, c := range []struct {
		what string
		args []string
		is   func(f *flows.Flow) bool
	}{
		{"a connection to a Service, of the node of both ends", []string{"--from", cli1, "--policy", b.ns + "/recorded"}, func(f *flows.Flow) bool {
			return f.Node == "worker1" && f.Verdict == flows.Allowed && f.Source.String() == cli1 && f.Destination.String() == srv1 && f.Destination.Port == whoPort &&
				strings.HasPrefix(f.Service, b.ns+"/svc1") && f.Asked == at(b.svc1, whoPort) && f.Rule != nil && strings.HasPrefix(f.Rule.String(), rule+" ingress[0]") &&
				f.Path == "local" && f.Ended == "closed" && f.Sent.Packets >= 3 && f.Received.Packets >= 2 && f.Sent.Bytes >= 40*f.Sent.Packets
		}},
		{"what the client's node let go", []string{"--from", cli2, "--to", srv1}, func(f *flows.Flow) bool {
			return f.Node == "worker2" && f.Verdict == flows.Allowed && f.Rule == nil && f.Received.Packets == 0
		}},
		{"what the server's node denied", []string{"--denied", "--to", srv1}, func(f *flows.Flow) bool {
			return f.Node == "worker1" && f.Verdict == flows.Denied && f.Source.String() == cli2 && f.Source.Node == "worker2" && f.Reason == "POLICY_INGRESS" && f.Sent.Packets > 0
		}},
		{"a client from outside, at the node that it asked and at the backend's", []string{"--from", client1Addr}, func(f *flows.Flow) bool {
			return f.Node == "worker2" && f.Verdict == flows.Allowed && f.Source.Address.String() == client1Addr && f.Destination.String() == b.ns+"/srv2" && f.Ended == "" && f.Sent.Packets > 0
		}},
	} {
		eventually(t, 0, c.what, func() error {
			b.cli1.dial(t, at(b.svc1, whoPort), 1)
			b.cli2.dial(t, at(b.srv1.addr, whoPort), 1, "--timeout", "100ms")
			all, err := b.flows(t, append(c.args, "--since", "1m")...)
			for i := range all {
				if c.is(&all[i]) {
					return nil
				}
			}
			if len(all) > 0 {
				last, _ := json.Marshal(all[len(all)-1])
				return fmt.Errorf("none of %d records, the last of which is %s", len(all), last)
			}
			return fmt.Errorf("no record: %v", err)
		})
	}
	if out, code := b.weir(t, "flows", "--from", cli1, "--top", "1"); code != 0 || !strings.Contains(out, cli1) {
		t.Errorf("the sums (%d):\n%s", code, out)
	}
	t.Run("hubble", func(t *testing.T) { hubbleObserves(t, b) })
	t.Run("page", func(t *testing.T) { pageShows(t, b) })
	t.Run("store", func(t *testing.T) { flowsAreStored(t, b) })
	t.Run("pageForAll", func(t *testing.T) { pageForAll(t, b) })
	t.Run("nftables", func(t *testing.T) { flowsOnNFTables(t, b) })
	t.Run("preview", func(t *testing.T) { policiesTried(t, b) }) // last: it puts other policies in the place of `recorded`
	b.patchFelix(t, `{"flowLogsLocalReporter":null,"flowLogsFlushInterval":null}`)
	eventually(t, 0, "an error says that records are off", func() error {
		if all, err := b.flows(t); err == nil || !strings.Contains(err.Error(), "flowLogsLocalReporter") {
			return fmt.Errorf("%d records, %v", len(all), err)
		}
		return nil
	})
	unbroken(t, open)
}

// flowsOnNFTables has the server's node change its data plane: connections that begin then have
// records that say the same.
func flowsOnNFTables(t *testing.T, b *base) {
	const node = `{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "node.worker1"}, "spec": {"bpfEnabled": false}}`
	b.mustKubectl(t, node, "apply", "-f", "-")
	t.Cleanup(func() {
		b.mustKubectl(t, "", "delete", "felixconfigurations.projectcalico.org", "node.worker1")
		b.awaitPlanes(t, map[string]string{"cp": "eBPF", "worker1": "eBPF", "worker2": "eBPF"})
		b.agentsReady(t, 0, nil)
	})
	b.awaitPlanes(t, map[string]string{"cp": "eBPF", "worker1": "nftables", "worker2": "eBPF"})
	b.agentsReady(t, 0, nil)
	changed, cli1, srv1 := time.Now(), b.ns+"/cli1", b.ns+"/srv1"
	eventually(t, 0, "a connection to a Service, by connection tracking", func() error {
		b.cli1.dial(t, at(b.svc1, whoPort), 1)
		all, err := b.flows(t, "--from", cli1, "--policy", b.ns+"/recorded", "--since", "1m")
		for _, f := range all {
			if f.Start.After(changed) && f.Node == "worker1" && f.Verdict == flows.Allowed && f.Destination.String() == srv1 && f.Destination.Port == whoPort &&
				strings.HasPrefix(f.Service, b.ns+"/svc1") && f.Asked == at(b.svc1, whoPort) && f.Rule != nil && strings.HasPrefix(f.Rule.String(), "NetworkPolicy "+b.ns+"/recorded ingress[0]") &&
				f.Path == "local" && f.Ended == "closed" && f.Sent.Packets >= 3 && f.Received.Packets >= 2 && f.Sent.Bytes >= 40*f.Sent.Packets {
				return nil
			}
		}
		return fmt.Errorf("none of %d records (%v)", len(all), err)
	})
}

// hubbleObserves asks worker1's agent by the hubble CLI, as it is, for what policy denied.
func hubbleObserves(t *testing.T, b *base) {
	cli := os.Getenv("WEIR_HUBBLE")
	if cli == "" {
		t.Skip("NOT RUN: WEIR_HUBBLE does not name the hubble CLI, which hack/hubble.sh builds")
	}
	node := b.host("worker1", worker1Addr)
	server := []string{cli, "--server", "unix:///run/weir/hubble.sock"}
	eventually(t, 0, "a connection that policy denied", func() error {
		b.cli2.dial(t, at(b.srv1.addr, whoPort), 1, "--timeout", "100ms")
		out, err := node.do(append(server, "observe", "--last", "1", "--verdict", "DROPPED", "--from-pod", b.ns+"/cli2", "--to-pod", b.ns+"/srv1", "-o", "json")...)
		var seen struct {
			Flow struct {
				By []struct{ Name, Namespace string } `json:"ingress_denied_by"`
			}
		}
		if err := errors.Join(err, json.Unmarshal([]byte(out), &seen)); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if by := seen.Flow.By; len(by) != 1 || by[0].Name != "recorded" || by[0].Namespace != b.ns {
			return fmt.Errorf("denied by %v: %s", by, out)
		}
		return nil
	})
	if out, err := node.do(append(server, "status")...); err != nil || !strings.Contains(out, "Healthcheck") {
		t.Errorf("hubble status: %v: %s", err, out)
	}
}

// withStore installs the store of flow records for as long as the test lasts.
func (l *lab) withStore(t *testing.T) {
	t.Helper()
	l.with(t, func(o *deploy.Options) { o.Flows = true }, names.Name)
}

// with installs, for as long as the test lasts, the objects of these names, as they are with other
// options.
func (l *lab) with(t *testing.T, options func(*deploy.Options), objects ...string) {
	t.Helper()
	agents, err := l.kube.AppsV1().DaemonSets(weirNamespace).Get(t.Context(), "weir-node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := deploy.Defaults()
	o.Image = agents.Spec.Template.Spec.Containers[0].Image
	options(&o)
	all, err := deploy.Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	for _, u := range all {
		if slices.Contains(objects, u.GetName()) {
			list.Items = append(list.Items, *u)
		}
	}
	text, err := list.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := l.kubectl(string(text), "delete", "--ignore-not-found", "--wait=false", "-f", "-"); err != nil {
			t.Errorf("remove %s: %v: %s", objects, err, out)
		}
	})
	l.mustKubectl(t, string(text), "apply", "-f", "-")
}

// flowsAreStored has the store of flow records answer `weir flows`, ends it without any warning
// under traffic, and finds what was before; who has no right to agents' records has none to the
// store's.
func flowsAreStored(t *testing.T, b *base) {
	b.withStore(t)
	cli1 := b.ns + "/cli1"
	stored := func(before time.Time, args ...string) error {
		out, code := b.weir(t, append([]string{"flows", "-o", "json", "--from", cli1, "--since", "1h"}, args...)...)
		if code != 0 || !strings.Contains(out, "asked: the store of flow records") {
			return fmt.Errorf("exit code %d: %s", code, out)
		}
		for line := range strings.Lines(out) {
			var f flows.Flow
			if json.Unmarshal([]byte(line), &f) == nil && f.Node == "worker1" && f.Source.String() == cli1 && f.Source.Labels["pod"] == "cli1" && f.End.Before(before) {
				return nil
			}
		}
		return fmt.Errorf("no record of a node: %s", out)
	}
	eventually(t, time.Minute, "a record of the store", func() error { return stored(time.Now()) })
	eventually(t, time.Minute, "weir status says how the store is", func() error { // it may answer before its Deployment says that it is ready
		if out, code := b.weir(t, "status"); !strings.Contains(out, names.Name+" 1/1 ready, ") || !strings.Contains(out, fmt.Sprintf(" of %d nodes", len(nodes))) {
			return fmt.Errorf("exit code %d:\n%s", code, out)
		}
		return nil
	})
	nobody := b.user(t, "reader")
	if out, code := b.weir(t, "--kubeconfig", nobody, "flows"); code == 0 || !strings.Contains(out, "orbidden") && !strings.Contains(out, "not allowed to ask agents") {
		t.Errorf("who has no right may ask: exit code %d:\n%s", code, out)
	}
	killed, now := time.Now(), int64(0)
	if err := b.kube.CoreV1().Pods(weirNamespace).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{LabelSelector: "k8s-app=" + names.Name}); err != nil {
		t.Fatal(err)
	}
	b.cli1.reaches(t, at(b.svc1, whoPort), "srv1", b.cli1.addr) // agents go on
	eventually(t, time.Minute, "a record of before, of the store that came after", func() error { return stored(killed) })
	if out, code := b.weir(t, "flows", "export", "--from", cli1, "--since", "1h"); code != 0 || !strings.Contains(out, `"pod":"cli1"`) {
		t.Errorf("an export: exit code %d:\n%s", code, out)
	}
}
