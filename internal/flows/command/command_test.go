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

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
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
