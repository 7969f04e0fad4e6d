// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/events"
)

// deny is an event as an agent writes it.
func deny(t *testing.T, node string) string {
	t.Helper()
	text, err := json.Marshal(events.Event{Time: time.Unix(0, 0), Node: node, Verdict: "denied", Reason: "POLICY_INGRESS", Protocol: "tcp",
		Source: events.Peer{Address: netip.MustParseAddr("10.0.0.1")}, Destination: events.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Pod: "a/b"},
		Ingress: &events.End{Rule: &events.Rule{Kind: "NetworkPolicy", Name: "a/p", Detail: "ingress[0]"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// Two nodes report an event each, one then ends; Ctrl-C ends the other's question too.
func TestMonitorFollowsNodes(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		ctx, stop := context.WithCancel(t.Context())
		var out, errs bytes.Buffer
		var ended sync.WaitGroup
		ended.Add(1)
		m := &monitor{out: &out, errs: &errs, json: asJSON}
		m.ask = func(ctx context.Context, node string, q wire.Question, to io.Writer) error {
			if q.Path != "/events?pod=a%2Fb&type=drop" {
				return fmt.Errorf("asked for %s", q.Path)
			}
			if _, err := io.WriteString(to, "\n"+deny(t, node)); err != nil {
				return err
			}
			if node == "gone" {
				ended.Wait()
				stop()
				return nil
			}
			ended.Done()
			<-ctx.Done()
			return ctx.Err()
		}
		if err := m.run(ctx, []string{"stays", "gone"}, events.Filter{Type: "drop", Pod: "a/b"}); err != nil {
			t.Error(err)
		}
		for _, node := range []string{"stays", "gone"} {
			want := node + " 10.0.0.1 → a/b tcp:80 DENIED by NetworkPolicy a/p ingress[0] POLICY_INGRESS\n"
			if asJSON {
				want = deny(t, node)
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q lacks %q", &out, want)
			}
		}
	}
}

func TestMonitorWithoutNodes(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	m := &monitor{out: io.Discard, errs: &errs, ask: func(context.Context, string, wire.Question, io.Writer) error { return errors.New("no agent") }}
	if err := m.run(t.Context(), []string{"n1"}, events.Filter{}); err == nil || !strings.Contains(errs.String(), "node n1 is no longer followed: no agent") {
		t.Errorf("%v, %q", err, &errs)
	}
}
