// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/sleep"
)

// Agents asks the agents of nodes.
type Agents interface {
	// Ask asks that of a node; the body of the answer must be closed.
	Ask(ctx context.Context, node, method, path string, body io.Reader) (*http.Response, error)
}

const (
	// bringWithin is how long it may take to bring the flows of an address to another node: other
	// machines wait meanwhile.
	bringWithin = 2 * time.Second
	// askAgain is between two tries to wait for a machine at its target's node.
	askAgain = time.Second
	// mostFlows are brought at most, of an address; others end.
	mostFlows = 32768
	// flowMost bounds what a node says of a flow, bytes; batchMost what another is told at once.
	flowMost  = 1 << 10
	batchMost = wire.MaxBody - flowMost
)

// flows brings open flows of machines to the nodes to which these are moved, before packets go
// there.
type flows struct {
	agents Agents // nil = there are none to ask
	log    *slog.Logger

	mu      sync.Mutex
	at      map[netip.Addr]string    // the node that has the flows of an address
	expects map[netip.Addr]*expected // by address
	waiting sync.WaitGroup
}

// expected is a machine that is moved.
type expected struct {
	from, to string
	stop     context.CancelFunc
}

func newFlows(agents Agents, log *slog.Logger) *flows {
	return &flows{agents: agents, log: log, at: map[netip.Addr]string{}, expects: map[netip.Addr]*expected{}}
}

// expect waits, in the background, until the machine with an address announces itself at a node,
// and brings the flows there. An empty node ends that.
func (m *flows) expect(ctx context.Context, a netip.Addr, from, to string) {
	if m.agents == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.expects[a]; e != nil {
		if e.from == from && e.to == to {
			return
		}
		e.stop()
		delete(m.expects, a)
	}
	if to == "" {
		return
	}
	wait, stop := context.WithCancel(ctx)
	m.expects[a] = &expected{from, to, stop}
	m.waiting.Go(func() {
		for {
			answer, err := ask(wait, m.agents, to, http.MethodGet, wire.MachineArrivalPath, a, nil)
			if err == nil {
				answer.Close()
				m.bring(ctx, a, from, to)
				return
			}
			m.log.Debug("waiting for a virtual machine", "address", a.String(), "node", to, "err", err)
			if sleep.For(wait, askAgain) != nil {
				return
			}
		}
	})
}

// bring brings the flows of an address to a node, unless they are there, from the one that has
// them, as far as that is known; else from another one.
func (m *flows) bring(ctx context.Context, a netip.Addr, from, to string) {
	if m.agents == nil {
		return
	}
	m.mu.Lock()
	if at := m.at[a]; at != "" {
		from = at
	}
	m.at[a] = to
	m.mu.Unlock()
	if from == to {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bringWithin)
	defer cancel()
	n, err := MoveFlows(ctx, m.agents, a, from, to)
	log := m.log.With("address", a.String(), "from", from, "to", to, "flows", n)
	if err != nil {
		log.Warn("open connections of a virtual machine that was moved may have ended", "err", err)
		return
	}
	log.Info("open flows of a virtual machine were brought to its node")
}

// forget is told that an address has no flows.
func (m *flows) forget(a netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.expects[a]; e != nil {
		e.stop()
	}
	delete(m.expects, a)
	delete(m.at, a)
}

// has reports whether the flows of an address were brought to a node.
func (m *flows) has(a netip.Addr, node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[a] == node
}

// MoveFlows brings the open flows of an address from one node to another, and returns how many.
func MoveFlows(ctx context.Context, agents Agents, a netip.Addr, from, to string) (n int, err error) {
	body, err := ask(ctx, agents, from, http.MethodGet, wire.MachineFlowsPath, a, nil)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	var batch bytes.Buffer
	put := func(more ...string) error {
		answer, err := ask(ctx, agents, to, http.MethodPut, wire.MachineFlowsPath, a, bytes.NewReader(batch.Bytes()), more...)
		if err != nil {
			return err
		}
		batch.Reset()
		return answer.Close()
	}
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, flowMost)
	for n < mostFlows && lines.Scan() {
		if batch.Len()+len(lines.Bytes()) >= batchMost {
			if err := put(); err != nil {
				return n, err
			}
		}
		batch.Write(lines.Bytes())
		batch.WriteByte('\n')
		n++
	}
	rest := lines.Err()
	if n == mostFlows && lines.Scan() {
		rest = fmt.Errorf("there are more than %d flows", mostFlows)
	}
	if rest != nil {
		rest = fmt.Errorf("the answer of node %s: %w", from, rest)
	}
	if err := put(wire.MachineFlowsLast); err != nil {
		return n, errors.Join(rest, err)
	}
	answer, err := ask(ctx, agents, from, http.MethodDelete, wire.MachineFlowsPath, a, nil)
	if err == nil {
		err = answer.Close()
	}
	return n, errors.Join(rest, err)
}

// ask asks a node's agent about an address; more are further keys of the query.
func ask(ctx context.Context, agents Agents, node, method, path string, a netip.Addr, body io.Reader, more ...string) (io.ReadCloser, error) {
	query := url.Values{wire.MachineFlowsAddress: {a.String()}}
	for _, key := range more {
		query.Set(key, "")
	}
	resp, err := agents.Ask(ctx, node, method, path+"?"+query.Encode(), body)
	if err != nil {
		return nil, fmt.Errorf("%s %s at node %s: %w", method, path, node, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(resp.Body, flowMost)) //nolint:errcheck // the code says it
	return nil, fmt.Errorf("%s %s at node %s: %s: %.200q", method, path, node, resp.Status, strings.TrimSpace(string(why)))
}
