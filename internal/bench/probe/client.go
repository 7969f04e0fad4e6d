// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/sleep"
)

// Client measures towards a server that has the same token.
type Client struct{ Token string }

// Measure runs one measurement. It ends early with ctx's error.
func (c *Client) Measure(ctx context.Context, s Spec) (Result, error) {
	if err := s.Check(); err != nil {
		return Result{}, err
	}
	switch s.Test {
	case Ping:
		return c.ping(s)
	case Endpoint, Policy, PodStart:
		return c.control(ctx, s)
	case Stream:
		return c.stream(ctx, s)
	case Datagrams:
		return c.datagrams(ctx, s)
	case Idle:
		return c.around(s, func(*Result) error { return sleep.For(ctx, s.Duration) })
	}
	return c.loop(ctx, s)
}

// around does what is timed between two readings of both nodes.
func (c *Client) around(s Spec, do func(*Result) error) (Result, error) {
	var r Result
	here, there, err := c.readings(s)
	if err != nil {
		return r, err
	}
	began := time.Now()
	err = do(&r)
	if r.Elapsed == 0 {
		r.Elapsed = time.Since(began).Seconds()
	}
	if err != nil {
		return r, err
	}
	here2, there2, err := c.readings(s)
	if err != nil {
		return r, err
	}
	r.Client, r.Server, r.OneMachine = here2.Since(here), there2.Since(there), here.Boot == there.Boot
	return r, nil
}

func (c *Client) readings(s Spec) (here, there Reading, err error) {
	if here, err = ReadNode(); err != nil {
		return
	}
	text, err := c.ask(s, "/stat")
	if err != nil {
		err = fmt.Errorf("asking the server for what its node does: %w", err)
		return
	}
	if err = json.Unmarshal(text, &there); err != nil {
		err = fmt.Errorf("the server's answer about its node: %w", err)
	}
	return
}

// ask makes one request and returns the answer's body.
func (c *Client) ask(s Spec, path string) ([]byte, error) {
	fd, err := connect(s.Direct, unix.SOCK_STREAM, s.Patience, congestion{})
	if err != nil {
		return nil, err
	}
	defer fd.close()
	b := newBuffered(fd)
	if err := fd.writeAll(requestText("GET", path, c.Token, true)); err != nil {
		return nil, err
	}
	n, err := b.readAnswer()
	if err != nil {
		return nil, err
	}
	body, err := b.body(n)
	return append([]byte(nil), body...), err
}

// ping makes one request over TCP, and one round trip of a datagram where there is an address for
// it.
func (c *Client) ping(s Spec) (Result, error) {
	direct := s
	direct.Direct = s.To
	began := time.Now()
	if _, err := c.ask(direct, "/who"); err != nil {
		return Result{}, err
	}
	r := Result{Elapsed: time.Since(began).Seconds(), Operations: 1}
	if !s.UDP.IsValid() {
		return r, nil
	}
	t, err := c.openTrip(s)
	if err != nil {
		return r, err
	}
	defer t.close()
	ok, err := t.do()
	if err == nil && !ok {
		err = fmt.Errorf("no answer to a datagram to %v within %v", s.UDP, s.Patience)
	}
	return r, err
}

// operation is what a loop repeats. It is false when there was no answer, which is counted and not
// an error.
type operation interface {
	do() (bool, error)
	close()
}

// loop repeats operations from so many threads at a time, for a duration or up to a count.
func (c *Client) loop(ctx context.Context, s Spec) (Result, error) {
	if s.Test == HTTP {
		s.Threads = 1
	}
	ops := make([]operation, s.Threads)
	defer func() {
		for _, op := range ops {
			if op != nil {
				op.close()
			}
		}
	}()
	for i := range ops {
		op, err := c.open(s)
		if err != nil {
			return Result{}, err
		}
		ops[i] = op
	}
	if s.WarmUp > 0 {
		if err := repeat(ctx, ops, s.WarmUp, 0, nil, &Result{}); err != nil {
			return Result{}, fmt.Errorf("warming up: %w", err)
		}
	}
	duration := s.Duration
	if s.Count > 0 {
		duration = maxDuration
	}
	all := newTimes()
	r, err := c.around(s, func(r *Result) error { return repeat(ctx, ops, duration, s.Count, &all, r) })
	r.Latency = all.latency()
	if t, ok := ops[0].(*roundTrip); ok {
		r.Congestion, r.MSS = t.fd.facts()
	}
	r.Size = s.Size
	return r, err
}

func (c *Client) open(s Spec) (operation, error) {
	switch s.Test {
	case RoundTrip:
		return c.openRoundTrip(s)
	case UDPTrip:
		return c.openTrip(s)
	}
	n := s.Body
	if n == 0 {
		n = 64
	}
	return &request{s: s, text: requestText("GET", "/?bytes="+strconv.Itoa(n), c.Token, true), b: newBuffered(-1)}, nil
}

// repeat runs operations until the time is up or count of them are made; 0 = no count.
func repeat(ctx context.Context, ops []operation, d time.Duration, count int, all *times, r *Result) error {
	var made, lost atomic.Int64
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	errs, took := make([]error, len(ops)), make([]times, len(ops))
	var threads sync.WaitGroup
	began := time.Now()
	for i, op := range ops {
		took[i] = newTimes()
		threads.Go(func() {
			runtime.LockOSThread()
			// At least one each, however little of its time a busy machine gives this process.
			for now, first := time.Now(), true; first || now.Sub(began) < d && !stop.Load(); first = false {
				if count > 0 && made.Add(1) > int64(count) {
					return
				}
				ok, err := op.do()
				end := time.Now()
				if err != nil {
					errs[i] = err
					stop.Store(true)
					return
				}
				if ok {
					took[i].add(end.Sub(now))
				} else {
					lost.Add(1)
				}
				now = end
			}
		})
	}
	threads.Wait()
	r.Elapsed = time.Since(began).Seconds()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	sum := newTimes()
	for _, t := range took {
		sum.merge(t)
	}
	r.Operations, r.Lost = sum.h.TotalCount(), lost.Load()
	if all != nil {
		all.merge(sum)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if r.Operations == 0 {
		return fmt.Errorf("nothing was answered within %v", d)
	}
	return nil
}

// roundTrip sends a message and reads one of the same size, over one connection.
type roundTrip struct {
	fd         socket
	send, recv []byte
}

func (c *Client) openRoundTrip(s Spec) (*roundTrip, error) {
	size := s.Size
	if size == 0 {
		size = 64
	}
	fd, _, err := c.begin(s, "/rr?bytes="+strconv.Itoa(size))
	if err != nil {
		return nil, err
	}
	return &roundTrip{fd, make([]byte, size), make([]byte, size)}, nil
}

// begin opens a connection and makes it what path says.
func (c *Client) begin(s Spec, path string) (socket, *buffered, error) {
	fd, err := connect(s.To, unix.SOCK_STREAM, s.Patience, s.congestion())
	if err != nil {
		return -1, nil, err
	}
	b := newBuffered(fd)
	err = fd.writeAll(requestText("POST", path, c.Token, false))
	if err == nil {
		var n int
		if n, err = b.readAnswer(); err == nil && n > 0 {
			_, err = b.body(n)
			b.start -= n // left for the caller
		}
	}
	if err != nil {
		fd.close()
		return -1, nil, fmt.Errorf("beginning with %s at %v: %w", path, s.To, err)
	}
	return fd, b, nil
}

func (t *roundTrip) do() (bool, error) {
	t.send[0]++
	if err := t.fd.writeAll(t.send); err != nil {
		return false, fmt.Errorf("sending a message: %w", err)
	}
	if err := t.fd.readAll(t.recv); err != nil {
		return false, fmt.Errorf("reading a message: %w", err)
	}
	if t.recv[0] != t.send[0] {
		return false, errors.New("a message came back changed")
	}
	return true, nil
}

func (t *roundTrip) close() { t.fd.close() }

// request is a connection for one request, which the server closes first: ports of the client are
// free at once.
type request struct {
	s    Spec
	text []byte
	b    *buffered
}

func (q *request) do() (bool, error) {
	fd, err := connect(q.s.To, unix.SOCK_STREAM, q.s.Patience, q.s.congestion())
	if err != nil {
		return false, err
	}
	defer fd.close()
	q.b.reset(fd)
	if err := fd.writeAll(q.text); err != nil {
		return false, fmt.Errorf("sending a request: %w", err)
	}
	n, err := q.b.readAnswer()
	if err != nil {
		return false, fmt.Errorf("reading an answer: %w", err)
	}
	if err := q.b.skip(n); err != nil {
		return false, fmt.Errorf("reading an answer's body: %w", err)
	}
	if err := q.b.more(); err != errEnd {
		return false, fmt.Errorf("the server did not close the connection: %w", err)
	}
	return true, nil
}

func (q *request) close() {}
