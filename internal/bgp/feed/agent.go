// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/localsock"
	"github.com/weir-net/weir/internal/nodestate"
)

// ErrAway is returned while no BGP process runs on the node.
var ErrAway = errors.New("no BGP process is running on this node")

// Agent is the end of the agent. It is safe for concurrent use.
type Agent struct {
	Log *slog.Logger

	mu      sync.Mutex
	desired *Desired // nil = not known yet: a process goes on with what it knows
	status  *Status
	conn    *connection
	asked   uint64
	waiting map[uint64]chan Answer
}

// connection is that of the process that called last.
type connection struct {
	*net.UnixConn
	wake chan struct{}
	asks chan Ask
}

// Set says what should be.
func (a *Agent) Set(s *nodestate.BGP) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.desired = &Desired{State: s}
	if a.conn != nil {
		select {
		case a.conn.wake <- struct{}{}:
		default:
		}
	}
}

// Status is what the process said last; nil = none runs.
func (a *Agent) Status() *Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// Ask asks the process.
func (a *Agent) Ask(ctx context.Context, ask Ask) (Answer, error) {
	a.mu.Lock()
	conn := a.conn
	if conn == nil {
		a.mu.Unlock()
		return Answer{}, ErrAway
	}
	a.asked++
	ask.ID = a.asked
	ch := make(chan Answer, 1)
	if a.waiting == nil {
		a.waiting = map[uint64]chan Answer{}
	}
	a.waiting[ask.ID] = ch
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, ask.ID)
	}()
	select {
	case conn.asks <- ask:
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
	select {
	case r := <-ch:
		return r, nil
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// Serve answers at a socket until ctx ends. Of several processes the last one that called counts.
func (a *Agent) Serve(ctx context.Context, path string) error {
	l, err := localsock.Listen(path)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := localsock.FromRoot(conn); err != nil {
			a.Log.Warn("a caller at the socket of the BGP process is turned away", "error", err)
			conn.Close()
			continue
		}
		all.Go(func() { a.talk(ctx, conn) })
	}
}

func (a *Agent) talk(ctx context.Context, uc *net.UnixConn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { uc.Close() })
	defer stop()
	c := &connection{UnixConn: uc, wake: make(chan struct{}, 1), asks: make(chan Ask)}
	a.mu.Lock()
	if a.conn != nil {
		a.conn.Close()
	}
	a.conn, a.status = c, nil
	c.wake <- struct{}{}
	a.mu.Unlock()
	a.Log.Info("the node's BGP process is there")
	defer func() {
		uc.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.conn == c {
			a.conn, a.status = nil, nil
			a.Log.Info("the node's BGP process is away")
		}
	}()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		defer uc.Close()
		a.send(ctx, c)
	})
	dec := json.NewDecoder(uc)
	for {
		var m ToAgent
		if err := dec.Decode(&m); err != nil {
			return
		}
		a.mu.Lock()
		if m.Status != nil && a.conn == c {
			a.status = m.Status
		}
		if m.Answer != nil {
			if ch := a.waiting[m.Answer.ID]; ch != nil {
				ch <- *m.Answer
				delete(a.waiting, m.Answer.ID)
			}
		}
		a.mu.Unlock()
	}
}

// send sends what should be whenever that is something else, and questions.
func (a *Agent) send(ctx context.Context, c *connection) {
	enc := json.NewEncoder(c)
	for {
		var m ToProcess
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			a.mu.Lock()
			m.Desired = a.desired
			a.mu.Unlock()
		case ask := <-c.asks:
			m.Ask = &ask
		}
		if m == (ToProcess{}) {
			continue
		}
		if c.SetWriteDeadline(time.Now().Add(10*time.Second)) != nil || enc.Encode(m) != nil {
			return
		}
	}
}
