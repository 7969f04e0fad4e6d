// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
)

// flowsOf is an agent's answer.
func flowsOf(t *testing.T, node string, lost uint64, all ...flows.Flow) string {
	t.Helper()
	var b strings.Builder
	to := json.NewEncoder(&b)
	for i := range all {
		if err := to.Encode(flows.Line{Flow: &all[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Encode(flows.Line{Status: &flows.Status{Node: node, Lost: map[string]uint64{"old": lost, "ring": 0}}}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The answers of nodes are one list by time; what a node has not kept, and who has no answer, is
// said; sums count a connection once that two nodes have seen.
func TestFlows(t *testing.T) {
	t.Parallel()
	f := flows.Flow{End: time.Unix(100, 0).UTC(), Node: "n1", Verdict: flows.Denied, Protocol: "tcp", Source: flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: "a", Pod: "b\x1b[2J"},
		Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80}, Sent: flows.Counters{Packets: 3, Bytes: 300}, Received: flows.Counters{Packets: 2, Bytes: 900}}
	early := f
	early.Node, early.End = "n2", time.Unix(50, 0).UTC()
	answers := map[string]string{"n1": flowsOf(t, "n1", 4, f, f), "n2": flowsOf(t, "n2", 0, early), "cut": "{}\n"}
	ask := func(_ context.Context, node string, q wire.Question, out io.Writer) error {
		if !strings.HasPrefix(q.Path, "/flows?denied=true") {
			t.Errorf("asked for %s", q.Path)
		}
		if answers[node] == "" {
			return errors.New("away")
		}
		_, err := io.WriteString(out, answers[node])
		return err
	}
	run := func(output string, top int, nodes ...string) (string, string, error) {
		var out, errs bytes.Buffer
		s := &Shown{Out: &out, Errs: &errs, Output: output}
		err := s.Run(t.Context(), &Agents{Nodes: nodes, Ask: ask}, flows.Question{Filter: flows.Filter{Denied: true}, Top: top})
		return out.String(), errs.String(), err
	}
	out, errs, err := run("wide", 0, "n1", "n2", "cut", "away")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 3 || !strings.Contains(lines[0], "n2") || !strings.Contains(lines[1], "sent 3 packets, 300 bytes") || strings.Contains(out, "\x1b") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"n1: records that it does not keep: 4 (old)", "node cut has no answer: the answer ends early", "node away has no answer", "asked: the agents of 4 nodes"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in\n%s", want, errs)
		}
	}
	out, _, err = run("json", 0, "n2")
	var got flows.Flow
	if err := errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil || got.Received.Bytes != 900 {
		t.Errorf("%v: %s", err, out)
	}
	out, _, err = run("", 5, "n1", "n2")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); err != nil || len(lines) != 2 || !strings.Contains(lines[1], "10 ") || !strings.Contains(lines[1], "2400") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err := run("", 0, "away"); err == nil {
		t.Error("no node answered, and that is no error")
	}
}

// storeOf is a store that gives records and a status.
func storeOf(t *testing.T, st *flows.StoreStatus, all ...flows.Flow) *Store {
	t.Helper()
	var b strings.Builder
	to := json.NewEncoder(&b)
	for i := range all {
		if err := to.Encode(flows.Line{Flow: &all[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if st != nil {
		if err := to.Encode(flows.Line{Store: st}); err != nil {
			t.Fatal(err)
		}
	}
	return &Store{Ask: func(_ context.Context, _ wire.Question, out io.Writer) error {
		_, err := io.WriteString(out, b.String())
		return err
	}}
}

// The store answers where there is one, agents where there is none or it does not answer; an answer
// that ends early is none, and one that fails after it gave records is no other's.
func TestPreferred(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0).UTC()
	record := func(node string, end time.Time) flows.Flow {
		return flows.Flow{End: end, Node: node, Verdict: flows.Allowed, Protocol: "udp", Source: flows.Peer{Address: netip.MustParseAddr("10.0.0.1")}, Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 53}}
	}
	agents := &Agents{Nodes: []string{"n1"}, Ask: func(_ context.Context, _ string, _ wire.Question, out io.Writer) error {
		_, err := io.WriteString(out, flowsOf(t, "n1", 0, record("n1", at)))
		return err
	}}
	failing := func(err error) *Store {
		return &Store{Ask: func(context.Context, wire.Question, io.Writer) error { return err }}
	}
	whole := &flows.StoreStatus{Oldest: at.Add(-time.Hour), Lost: map[string]uint64{"old": 7}, Silent: []string{"n9"}, More: true}
	for name, c := range map[string]struct {
		store *Store
		node  string   // whose record is shown
		says  []string // to Errs
		fails bool
	}{
		"the store":            {store: storeOf(t, whole, record("n2", at), record("n2", at.Add(-time.Minute))), node: "n2", says: []string{"asked: the store of flow records, which has records from ", "7 (old)", "n9", "the latest 1 records, of more"}},
		"a coarser one":        {store: storeOf(t, &flows.StoreStatus{Coarse: at, CoarseSeconds: 300}, record("n2", at)), node: "n2", says: []string{"are coarser: each is the sum of those of its ends, port and decision in 5m0s"}},
		"no store":             {store: failing(agentapi.ErrNoStore), node: "n1", says: []string{"asked: the agents of 1 nodes, as no store of flow records answers"}},
		"a store that fails":   {store: failing(errors.New("its disk is gone")), node: "n1", says: []string{"the store of flow records does not answer: its disk is gone"}},
		"an early end":         {store: storeOf(t, nil), node: "n1", says: []string{"the answer ends early"}},
		"an end in the middle": {store: storeOf(t, nil, record("n2", at)), fails: true},
	} {
		var out, errs bytes.Buffer
		err := (&Shown{Out: &out, Errs: &errs}).Run(t.Context(), &Preferred{Store: c.store, Agents: agents}, flows.Question{Limit: 1})
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
		if lines := strings.Count(out.String(), "\n"); !c.fails && (lines != 1 || !strings.Contains(out.String(), " "+c.node+" ")) {
			t.Errorf("%s: %d lines: %s", name, lines, out.String())
		}
		for _, want := range c.says {
			if !strings.Contains(errs.String(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, errs.String())
			}
		}
	}
}

// Who reads records can end the answer.
func TestReaderEnds(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	endless := func(ctx context.Context, out io.Writer) error {
		line, err := json.Marshal(flows.Line{Flow: &flows.Flow{End: time.Unix(100, 0), Verdict: flows.Allowed}})
		for err == nil && ctx.Err() == nil {
			_, err = out.Write(append(line, '\n'))
		}
		return err
	}
	for name, r := range map[string]Reader{
		"store":  &Store{Ask: func(ctx context.Context, _ wire.Question, out io.Writer) error { return endless(ctx, out) }},
		"agents": &Agents{Nodes: []string{"n1", "n2"}, Ask: func(ctx context.Context, _ string, _ wire.Question, out io.Writer) error { return endless(ctx, out) }},
	} {
		if _, err := r.Read(t.Context(), flows.Question{}, func(*flows.Flow) error { return enough }); !errors.Is(err, enough) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An export is all records as they are, one object a line.
func TestExport(t *testing.T) {
	t.Parallel()
	f := flows.Flow{End: time.Unix(100, 0).UTC(), Node: "n1", Verdict: flows.Allowed, Protocol: "udp", Source: flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: "a", Pod: "b\u202e", Labels: map[string]string{"app": "b"}},
		Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 53}, Sent: flows.Counters{Packets: 1, Bytes: 60}}
	var out, errs bytes.Buffer
	n, err := Export(t.Context(), storeOf(t, &flows.StoreStatus{}, f, f), flows.Question{}, &out, &errs)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if err != nil || n != 2 || len(lines) != 2 || strings.Contains(out.String(), "\u202e") {
		t.Fatalf("%d, %v: %s", n, err, out.String())
	}
	var got flows.Flow
	if err := json.Unmarshal([]byte(lines[1]), &got); err != nil || !reflect.DeepEqual(got, f) {
		t.Errorf("%v: %+v", err, got)
	}
}

// Options that mean nothing are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Shown: Shown{Output: "yaml"}}, {Since: -1}, {Until: -1}, {Top: -1}, {Last: -1}, {Since: time.Minute, Until: time.Hour}, {Of: flows.Filter{To: "a/b/c"}}} {
		if _, err := o.Question(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	q, err := (&Options{Since: time.Hour, Until: time.Minute}).Question()
	if err != nil || q.Until.Sub(q.Since) != 59*time.Minute {
		t.Errorf("%v, %v to %v", err, q.Since, q.Until)
	}
}
