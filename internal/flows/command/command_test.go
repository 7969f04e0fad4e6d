// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/flowstore/names"
)

// answering is who answers with lines; nil = nobody.
func answering(t *testing.T, lines ...flows.Line) func(out io.Writer) error {
	t.Helper()
	return func(out io.Writer) error {
		if lines == nil {
			return agentapi.ErrNoStore
		}
		for _, l := range lines {
			if err := json.NewEncoder(out).Encode(l); err != nil {
				return err
			}
		}
		return nil
	}
}

func reachOf(store, agent func(io.Writer) error) Reach {
	return func(_ context.Context, node string) (*ask.Preferred, error) {
		return &ask.Preferred{Store: &ask.Store{Ask: func(_ context.Context, _ wire.Question, out io.Writer) error { return store(out) }},
			Agents: &ask.Agents{Nodes: []string{"n1"}, Ask: func(_ context.Context, _ string, _ wire.Question, out io.Writer) error { return agent(out) }}}, nil
	}
}

// The store is asked but where a node is named; its sums are shown as they are.
func TestWhoIsAsked(t *testing.T) {
	t.Parallel()
	of := func(node string) flows.Line {
		return flows.Line{Flow: &flows.Flow{End: time.Unix(9, 0), Node: node, Verdict: flows.Allowed, Protocol: "tcp"}}
	}
	agent := answering(t, of("agents"), flows.Line{Status: &flows.Status{Node: "n1"}})
	whole := answering(t, of("stored"), flows.Line{Store: &flows.StoreStatus{}})
	sums := answering(t, flows.Line{Sum: &flows.Sum{From: "shop/web", To: "db", Protocol: "tcp", Port: 5432, Bytes: 77}}, flows.Line{Store: &flows.StoreStatus{}})
	for _, c := range []struct {
		store func(io.Writer) error
		args  []string
		want  string
	}{
		{whole, nil, " stored "}, {whole, []string{"--node", "n1"}, " agents "}, {answering(t), nil, " agents "}, {sums, []string{"--top", "3"}, "shop/web"},
		{whole, []string{"export"}, `"node":"stored"`}, {answering(t), []string{"export"}, `"node":"agents"`},
	} {
		var out, errs bytes.Buffer
		cmd := New(reachOf(c.store, agent))
		cmd.SetArgs(c.args)
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), c.want) || !strings.Contains(errs.String(), "weir: asked: ") {
			t.Errorf("%q: %v: %s%s", c.args, err, out.String(), errs.String())
		}
	}
}

// A file has all records or is not there, and no other file is written over.
func TestExportFile(t *testing.T) {
	t.Parallel()
	record := flows.Line{Flow: &flows.Flow{End: time.Unix(9, 0), Node: "n1", Verdict: flows.Allowed}}
	run := func(file string, store func(io.Writer) error) error {
		cmd := New(reachOf(store, func(io.Writer) error { return errors.New("away") }))
		cmd.SetArgs([]string{"export", "--file", file})
		cmd.SetErr(io.Discard)
		cmd.SilenceUsage = true
		return cmd.ExecuteContext(t.Context())
	}
	file := filepath.Join(t.TempDir(), "flows.jsonl")
	if err := run(file, answering(t, record)); err == nil { // without a status
		t.Error("an answer that ends early is taken for all")
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not all stays: %v", err)
	}
	if err := run(file, answering(t, record, record, flows.Line{Store: &flows.StoreStatus{}})); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%v: %s", err, text)
	}
	if err := run(file, answering(t, flows.Line{Store: &flows.StoreStatus{}})); !errors.Is(err, os.ErrExist) {
		t.Errorf("another file: %v", err)
	}
}

// How the store is: not there, not ready, ready, or silent.
func TestStatus(t *testing.T) {
	t.Parallel()
	if line, fault, err := Status(t.Context(), fake.NewClientset(), nil); line+fault != "" || err != nil {
		t.Errorf("without a store: %q %q %v", line, fault, err)
	}
	store := func(lines ...flows.Line) *ask.Store {
		return &ask.Store{Ask: func(_ context.Context, _ wire.Question, out io.Writer) error { return answering(t, lines...)(out) }}
	}
	for _, c := range []struct {
		ready int32
		store *ask.Store
		line  string
		fault bool
	}{
		{0, nil, "weir-flows 0/1 ready", true},
		{1, store(flows.Line{Store: &flows.StoreStatus{Records: 5, Bytes: 1 << 20, Nodes: 2, Lost: map[string]uint64{"old": 3}, Silent: []string{"a", "b", "c", "d"}}}),
			"weir-flows 1/1 ready, 5 records, 1.0 MiB on its disk, of 2 nodes; lost: 3 (old); 4 nodes whose records it had are not connected: a, b, c, …", false},
		{1, store(), "weir-flows 1/1 ready, it does not say how it is: no store of flow records answers", false},
	} {
		kube := fake.NewClientset(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: names.Name}, Status: appsv1.DeploymentStatus{ReadyReplicas: c.ready}})
		line, fault, err := Status(t.Context(), kube, c.store)
		if line != c.line || (fault != "") != c.fault || err != nil {
			t.Errorf("%q %q %v", line, fault, err)
		}
	}
}
