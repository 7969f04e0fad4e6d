// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
)

// keyNodes answer as agents do: one that changes its key needs some questions for it.
type keyNodes struct {
	keys  map[string]string
	left  map[string]int
	begun []string
	fails map[string]error
	// away is how often a node whose change has begun does not answer.
	away int
}

func (k *keyNodes) ask(_ context.Context, node string, q wire.Question, into any) error {
	if err := k.fails[node]; err != nil {
		return err
	}
	var asked wire.KeyChange
	if err := json.Unmarshal([]byte(q.Body), &asked); err != nil || q.Path != wire.KeyPath {
		return fmt.Errorf("%s %s: %w", q.Path, q.Body, err)
	}
	key := k.keys[node]
	switch {
	case k.left[node] > 0 && k.away > 0:
		k.away--
		return agentapi.ErrNoAgent
	case k.left[node] > 1:
		k.left[node]--
	case k.left[node] == 1:
		k.left[node] = 0
		k.keys[node] = key + "'"
	case len(asked.Replaces) == 0 || slices.Contains(asked.Replaces, key):
		k.left[node] = 3
		k.begun = append(k.begun, node)
	}
	*into.(*wire.Keys) = wire.Keys{Node: node, Public: []string{k.keys[node]}, Changing: k.left[node] > 0}
	return nil
}

func TestWireGuardRotate(t *testing.T) {
	t.Parallel()
	k := &keyNodes{keys: map[string]string{"n1": "a", "n2": "b" + controls, "n3": "c"}, left: map[string]int{}, fails: map[string]error{"n2": agentapi.ErrNoAgent}, away: 2}
	var out bytes.Buffer
	r := &rotation{ask: k.ask, within: time.Minute, every: time.Millisecond, out: &out}
	err := r.nodes(t.Context(), []string{"n1", "n2", "n3"})
	text := out.String()
	if !errors.Is(err, errUnhealthy) || !strings.Contains(text, "node n1: a' instead of a\n") || !strings.Contains(text, "node n3: c' instead of c\n") ||
		!strings.Contains(text, "failed: no agent answers") || fmt.Sprint(k.begun) != "[n1 n3]" {
		t.Errorf("%v, begun %v: %q", err, k.begun, text)
	}
	k.fails = nil
	out.Reset()
	if err := r.nodes(t.Context(), []string{"n2"}); err != nil || strings.Contains(out.String(), controls) {
		t.Errorf("%v: %q", err, out.String())
	}
	// Who has no right is told so once.
	k.fails = map[string]error{"n1": agentapi.ErrNoRight, "n3": agentapi.ErrNoRight}
	out.Reset()
	if err := r.nodes(t.Context(), []string{"n1", "n3"}); !errors.Is(err, agentapi.ErrNoRight) || out.Len() > 0 {
		t.Errorf("%v: %q", err, out.String())
	}
	// A node that never uses its next key is named.
	k.fails, k.left = nil, map[string]int{"n1": 1 << 30}
	r.within = 20 * time.Millisecond
	out.Reset()
	if err := r.nodes(t.Context(), []string{"n1"}); !errors.Is(err, errUnhealthy) || !strings.Contains(out.String(), "node n1 still has") {
		t.Errorf("%v: %q", err, out.String())
	}
	for _, bad := range [][]string{{}, {"--node", "a", "--all"}, {"worker1"}} {
		cmd := newRotate(&options{})
		cmd.SetArgs(bad)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%v is no error", bad)
		}
	}
}
