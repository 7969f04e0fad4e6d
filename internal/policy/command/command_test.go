// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/exitcode"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/policy/preview"
)

const (
	cluster = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {kubernetes.io/metadata.name: shop}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: jobs, labels: {kubernetes.io/metadata.name: jobs}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 172.31.1.1}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db-clients, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}}
`
	only5432 = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db-clients}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{ports: [{port: 5432}]}]}}`
	same     = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db-clients}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}}`
)

// pod is an end that is a pod.
func pod(name, addr string, port uint16) flows.Peer {
	return flows.Peer{Address: netip.MustParseAddr(addr), Port: port, Namespace: "shop", Pod: name + "-h-1", Workload: "Deployment " + name, Node: "n1", Labels: map[string]string{"app": name, "pod-template-hash": "h"}}
}

// seen is a record of a connection of web, or cron, to db.
func seen(from, addr string, port uint16, allowed bool) *flows.Flow {
	f := &flows.Flow{Start: time.Now().Add(-time.Minute), End: time.Now().Add(-time.Minute), Node: "n1", Verdict: flows.Allowed, Protocol: "tcp", Source: pod(from, addr, 40000), Destination: pod("db", "10.0.0.2", port),
		Egress: &events.End{}, Ingress: &events.End{Rule: &events.Rule{Kind: "NetworkPolicy", Name: "shop/db-clients"}}, Sent: flows.Counters{Packets: 2}}
	if !allowed {
		f.Verdict, f.Reason = flows.Denied, "POLICY_INGRESS"
	}
	return f
}

// run runs the command on records.
func run(t *testing.T, stdin string, records []*flows.Flow, args ...string) (stdout, stderr string, code int, err error) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var lines strings.Builder
	for _, f := range records {
		if err := json.NewEncoder(&lines).Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	c := New(func() (*clientset.Clients, *agentapi.Client, error) { return nil, nil, errors.New("no cluster") })
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetIn(strings.NewReader(stdin))
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append(args, "--objects", write("cluster.yaml", cluster), "--file", write("records.json", lines.String())))
	err = c.ExecuteContext(t.Context())
	if coded := (*exitcode.Error)(nil); errors.As(err, &coded) {
		code, err = coded.Code, coded.Err
	}
	return out.String(), errs.String(), code, err
}

// Exit codes say what a change does; the worst counts.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	web, cron := seen("web", "10.0.0.1", 5432, true), seen("cron", "10.0.0.3", 5432, false)
	other := seen("web", "10.0.0.1", 9999, true)
	unknown := seen("web", "10.0.0.1", 0, true)
	for _, x := range []struct {
		what    string
		file    string
		args    []string
		records []*flows.Flow
		code    int
		want    string
	}{
		{"nothing", same, nil, []*flows.Flow{web, cron}, 0, "0 would be denied, 0 allowed, 0 are not known, 3 unchanged"},
		{"denied", only5432, nil, []*flows.Flow{web, cron, other}, codeDenied, "shop/Deployment web → shop/Deployment db tcp:9999"},
		{"allowed", only5432, nil, []*flows.Flow{web, cron}, codeAllowed, "ingress by NetworkPolicy shop/db-clients ingress[0]"},
		{"unknown", only5432, nil, []*flows.Flow{cron, unknown}, codeUnknown, "not known: the port"},
		{"nothing recorded", only5432, nil, nil, codeUnknown, "there are no records"},
		{"all is older", only5432, []string{"--since", "1s"}, []*flows.Flow{web}, codeUnknown, "there are no records"},
		{"deleted", "", []string{"--delete", "networkpolicy/db-clients"}, []*flows.Flow{web, cron}, codeAllowed, "no policy selects an end"},
	} {
		args := append([]string{"preview", "-n", "shop"}, x.args...)
		if x.file != "" {
			args = append(args, "-f", "-")
		}
		out, _, code, err := run(t, x.file, x.records, args...)
		if err != nil || code != x.code || !strings.Contains(out, x.want) {
			t.Errorf("%s: %v, exit code %d, want %d and %q in\n%s", x.what, err, code, x.code, x.want, out)
		}
	}
	out, _, code, err := run(t, only5432, []*flows.Flow{other}, "preview", "-n", "shop", "-f", "-", "-o", "json")
	var r preview.Report
	if err := errors.Join(err, json.Unmarshal([]byte(out), &r)); err != nil || code != codeDenied || len(r.Denied) != 1 || r.Denied[0].Rule.Kind != "default-deny" || r.Records != 1 {
		t.Errorf("%v: exit code %d: %s", err, code, out)
	}
}

// What is not understood is an error, and nothing is said.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		stdin, want string
		args        []string
	}{
		{"", "-f", []string{"preview"}},
		{"", "json", []string{"preview", "-f", "-", "-o", "yaml"}},
		{strings.Replace(only5432, "podSelector", "selector", 1), "unknown field", []string{"preview", "-n", "shop", "-f", "-"}},
		{only5432, "no namespace default", []string{"preview", "-f", "-"}},
		{"", "there is none", []string{"preview", "--delete", "gnp/x"}},
		{"", "not negative", []string{"preview", "--delete", "gnp/x", "--since", "-1s"}},
		{"", "--calico", []string{"recommend", "-n", "shop", "--staged"}},
		{"", `no namespace "other"`, []string{"recommend", "-n", "other"}},
		{"", "no flow", []string{"recommend", "-n", "shop"}},
	} {
		out, _, _, err := run(t, x.stdin, nil, x.args...)
		if err == nil || !strings.Contains(err.Error(), x.want) || out != "" {
			t.Errorf("%v: %v, want %q; %s", x.args, err, x.want, out)
		}
	}
	_, errs, _, _ := run(t, `{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: x}, spec: {selector: "app =="}}`, nil, "preview", "-n", "shop", "-f", "-")
	if !strings.Contains(errs, "warning: ") || !strings.Contains(errs, "spec.selector") {
		t.Errorf("what is not in force as it is written: %s", errs)
	}
}

// What is recommended is a file that preview takes, and says what it is unsure of.
func TestRecommend(t *testing.T) {
	t.Parallel()
	records := []*flows.Flow{seen("web", "10.0.0.1", 5432, true), seen("cron", "10.0.0.3", 5432, false), seen("web", "10.0.0.1", 0, true)}
	for _, args := range [][]string{{}, {"--calico"}, {"--calico", "--staged"}} {
		text, _, _, err := run(t, "", records, append([]string{"recommend", "-n", "shop"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"name: default-deny", "name: db", "name: web", "# - 1 pairs of ends and ports were denied", "1 flows are not allowed, for want of the port", "no flow of Deployment cron was seen", "seen once"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
		out, _, code, err := run(t, text, records[:2], "preview", "-f", "-")
		if err != nil || code != 0 || !strings.Contains(out, "3 unchanged") {
			t.Errorf("%v, exit code %d: %s", err, code, out)
		}
	}
}

// The examples of the guide are what is printed.
func TestGuide(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../docs/guides/policy-preview.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := string(raw)
	block := func(after, language string) string {
		_, rest, ok := strings.Cut(guide, after+"```"+language+"\n")
		if !ok {
			t.Fatalf("the guide has no %q", after)
		}
		text, _, _ := strings.Cut(rest, "```\n")
		return text
	}
	began := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	var records []*flows.Flow
	add := func(n int, from flows.Peer, to uint16, service string, allowed bool) {
		for i := range n {
			f := seen("web", "10.0.0.1", to, allowed)
			f.Source, f.Service, f.Start, f.End = from, service, began, began.Add(time.Second)
			f.Source.Port = uint16(30000 + i)
			records = append(records, f)
		}
	}
	jobs := pod("report", "10.0.0.9", 0)
	jobs.Namespace = "jobs"
	add(40, pod("web", "10.0.0.1", 0), 5432, "shop/db port postgres", true)
	add(12, pod("web", "10.0.0.1", 0), 9187, "", true)
	add(3, jobs, 5432, "shop/db port postgres", false)
	out, _, code, err := run(t, block("in the jobs of another namespace:\n\n", "yaml"), records, "preview", "-f", "-")
	_, want, _ := strings.Cut(block("<!-- example: preview -->\n", "text"), "\n")
	if err != nil || code != codeDenied || out != want {
		t.Errorf("%v, exit code %d: the guide's example is not what is printed:\n%s", err, code, out)
	}
	outside := seen("web", "10.0.0.1", 0, true)
	outside.Source, outside.Destination, outside.Egress, outside.Return = flows.Peer{Address: netip.MustParseAddr("192.0.2.7"), Port: 4}, pod("web", "10.0.0.1", 8080), nil, "direct"
	outside.Start, outside.End = began, began.Add(time.Second)
	out, _, _, err = run(t, "", append(records, outside), "recommend", "-n", "shop")
	if want := block("<!-- example: recommend -->\n", "text"); err != nil || !strings.HasPrefix(out, want+"---\n") {
		t.Errorf("%v: the guide's example is not how this begins:\n%s", err, out)
	}
}
