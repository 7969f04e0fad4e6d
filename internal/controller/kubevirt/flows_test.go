// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weir-net/weir/internal/agentapi/wire"
)

// nodes are agents that note what they are asked. n1 has flows, and at n2 a machine announces
// itself when arrives is closed.
type nodes struct {
	flows   int
	arrives chan struct{}
	refuse  string // the method that is refused

	mu    sync.Mutex
	asked []string
	lines int
}

func (n *nodes) Ask(ctx context.Context, node, method, path string, body io.Reader) (*http.Response, error) {
	path, query, _ := strings.Cut(path, "?")
	if path == wire.MachineArrivalPath {
		select {
		case <-n.arrives:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	what := method + " " + node
	if strings.Contains(query, wire.MachineFlowsLast) {
		what += " last"
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, what)
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	switch {
	case method == n.refuse:
		resp.StatusCode, resp.Body = http.StatusConflict, io.NopCloser(strings.NewReader("not now"))
	case method == http.MethodGet && path == wire.MachineFlowsPath:
		resp.Body = io.NopCloser(strings.NewReader(strings.Repeat("a flow of a hundred bytes"+strings.Repeat(".", 74)+"\n", n.flows)))
	case method == http.MethodPut:
		text, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		if len(text) > wire.MaxBody {
			return nil, fmt.Errorf("a body of %d bytes", len(text))
		}
		n.lines += strings.Count(string(text), "\n")
	}
	return resp, nil
}

func (n *nodes) were(t *testing.T, want ...string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.asked, want) {
		t.Errorf("asked were %q, want %q", n.asked, want)
	}
	n.asked = nil
}

var four = netip.MustParseAddr("10.244.1.2")

// TestMoveFlows: all flows come in batches that an agent reads, and the node that the machine
// leaves is told last.
func TestMoveFlows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flows, batches int
		refuse, err    string
	}{
		{0, 1, "", ""},
		{3, 1, "", ""},
		{2000, 4, "", ""},
		{mostFlows + 1, 51, "", "more than"},
		{3, 0, http.MethodGet, "not now"},
		{3, 1, http.MethodPut, "not now"},
	} {
		n := &nodes{flows: c.flows, refuse: c.refuse}
		moved, err := MoveFlows(t.Context(), n, four, "n1", "n2")
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%+v: %v", c, err)
		}
		if c.refuse == "" && (moved != min(c.flows, mostFlows) || n.lines != moved) {
			t.Errorf("%+v: %d were moved, %d came", c, moved, n.lines)
		}
		want := append([]string{"GET n1"}, slices.Repeat([]string{"PUT n2"}, c.batches)...)
		if c.batches > 0 {
			want[len(want)-1] += " last"
		}
		if c.refuse == "" {
			want = append(want, "DELETE n1")
		}
		n.were(t, want...)
	}
}

// TestFlowsFollow: flows are brought when the machine announces itself, once, and back when the
// migration is given up after that.
func TestFlowsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{flows: 1, arrives: make(chan struct{})}
		m := newFlows(n, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer m.waiting.Wait()
		defer cancel()
		m.bring(ctx, four, "n1", "n1")
		m.expect(ctx, four, "n1", "n2")
		m.expect(ctx, four, "n1", "n2")
		synctest.Wait()
		n.were(t)
		close(n.arrives)
		synctest.Wait()
		n.were(t, "GET n2", "GET n1", "PUT n2 last", "DELETE n1")
		m.bring(ctx, four, "n1", "n2")
		n.were(t)
		m.expect(ctx, four, "", "")
		m.bring(ctx, four, "n1", "n1")
		n.were(t, "GET n2", "PUT n1 last", "DELETE n2")
	})
}
