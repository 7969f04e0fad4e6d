// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weir-net/weir/internal/events"
)

// watching is a weir monitor that runs.
type watching struct {
	mu   sync.Mutex
	seen []events.Event
	odd  []string // lines that are no events
}

// monitor starts weir monitor; it ends with the test.
func (l *lab) monitor(t *testing.T, args ...string) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := l.command(ctx, "exec", append([]string{"client1", "--", filepath.Join(l.bin, "weir"), "monitor", "-o", "json"}, args...)...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w, ended := &watching{}, make(chan struct{})
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			var e events.Event
			err := json.Unmarshal(s.Bytes(), &e)
			w.mu.Lock()
			if err != nil {
				w.odd = append(w.odd, s.Text())
			} else {
				w.seen = append(w.seen, e)
			}
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = c.Wait() // it was interrupted
	})
	return w
}

// find looks for an event whose line has all these texts.
func (w *watching) find(texts ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.seen {
		line := e.String()
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(line, s) }) {
			return nil
		}
	}
	last := ""
	for _, e := range w.seen[max(len(w.seen)-5, 0):] {
		last += "\n" + e.String()
	}
	return fmt.Errorf("no event of %q among %d, the last of which are%s\n%q", texts, len(w.seen), last, w.odd)
}

// TestPolicyMonitor: weir monitor shows verdicts of the nodes where they fall, with the names of
// pods, Service and rule.
func TestPolicyMonitor(t *testing.T) {
	b := sharedBase(t)
	b.policy(t, "watched", `{podSelector: {matchLabels: {pod: srv1}}, ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}]}]}`)
	b.cli2.soon(t, at(b.srv1.addr, whoPort), false)
	srv1 := b.ns + "/srv1"
	w := b.monitor(t, "--pod", srv1)
	eventually(t, 0, "the verdicts", func() error {
		b.cli1.dial(t, at(b.svc1, udpPort), 1, "--udp")
		b.cli2.dial(t, at(b.srv1.addr, whoPort), 1, "--timeout", "100ms")
		for _, texts := range [][]string{
			{" worker1 " + b.ns + "/cli1 → " + srv1, "ALLOWED by NetworkPolicy " + b.ns + "/watched ingress[0]", "service " + b.ns + "/svc1"},
			{" worker2 " + b.ns + "/cli2 → " + srv1, "ALLOWED (no policy)"},
			{" worker1 " + b.ns + "/cli2 → " + srv1, "DENIED by default-deny " + b.ns + "/watched ingress POLICY_INGRESS"},
		} {
			if err := w.find(texts...); err != nil {
				return err
			}
		}
		return nil
	})
}
