// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

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
	f := flows.Flow{End: time.Unix(100, 0).UTC(), Node: "n1", Verdict: flows.Allowed, Protocol: "tcp", Source: flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: "a", Pod: "b\x1b[2J"},
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
		s := &Shown{Out: &out, Errs: &errs, Output: output, Top: top, Ask: ask}
		err := s.Run(t.Context(), nodes, flows.Filter{Denied: true})
		return out.String(), errs.String(), err
	}
	out, errs, err := run("wide", 0, "n1", "n2", "cut", "away")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 3 || !strings.Contains(lines[0], "n2") || !strings.Contains(lines[1], "sent 3 packets, 300 bytes") || strings.Contains(out, "\x1b") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"n1: records that it does not keep: 4 (old)", "node cut has no answer: the answer ends early", "node away has no answer"} {
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

// The latest records are kept, and the others counted, however they are spread over nodes.
func TestNodesKeepTheLatest(t *testing.T) {
	t.Parallel()
	answers := map[string]string{}
	for node, first := range map[string]int64{"n1": 0, "n2": 1, "n3": 2} {
		var all []flows.Flow
		for i := range int64(5) {
			all = append(all, flows.Flow{Node: node, End: time.Unix(first+3*i, 0).UTC()})
		}
		answers[node] = flowsOf(t, node, 0, all...)
	}
	ask := func(_ context.Context, node string, _ wire.Question, out io.Writer) error {
		_, err := io.WriteString(out, answers[node])
		return err
	}
	for most, want := range map[int]int{0: 15, 4: 4, 15: 15, 20: 15} {
		found, err := Nodes(t.Context(), ask, []string{"n1", "n2", "n3"}, flows.Filter{}, most)
		if err != nil || len(found.Flows) != want || found.Left != 15-want {
			t.Fatalf("%d: %d records, %d left, %v", most, len(found.Flows), found.Left, err)
		}
		for i, f := range found.Flows {
			if at := int64(15 - want + i); f.End.Unix() != at {
				t.Errorf("%d: record %d ended at %d, want %d", most, i, f.End.Unix(), at)
			}
		}
	}
}
