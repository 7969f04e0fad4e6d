// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/sleep"
)

// stream sends over as many connections as there are threads. What counts are the bytes that
// arrived.
func (c *Client) stream(ctx context.Context, s Spec) (Result, error) {
	fds := make([]socket, s.Threads)
	ends := make([]*buffered, s.Threads)
	for i := range fds {
		var err error
		if fds[i], ends[i], err = c.begin(s, "/sink"); err != nil {
			return Result{}, err
		}
		defer fds[i].close()
	}
	congestion, mss := fds[0].facts()
	var sent atomic.Int64
	fill := func(d time.Duration) error {
		return parallel(ctx, len(fds), d, func(i int, going func() bool) error {
			buf := make([]byte, streamBuffer)
			for going() {
				n, err := fds[i].write(buf)
				if err != nil {
					return fmt.Errorf("sending a stream to %v: %w", s.To, err)
				}
				sent.Add(int64(n))
			}
			return nil
		})
	}
	if s.WarmUp > 0 { // windows grow
		if err := fill(s.WarmUp); err != nil {
			return Result{}, err
		}
	}
	before := sent.Load()
	r, err := c.around(s, func(r *Result) error { return fill(s.Duration) })
	if err != nil {
		return r, err
	}
	// What was in flight at the beginning makes up for what is at the end: both are what fits the
	// windows.
	r.Bytes, r.Congestion, r.MSS = sent.Load()-before, congestion, mss
	arrived := int64(0)
	for i, fd := range fds {
		if err := unix.Shutdown(int(fd), unix.SHUT_WR); err != nil {
			return r, fmt.Errorf("ending a stream: %w", err)
		}
		line, err := ends[i].until([]byte("\n"), 64)
		if err != nil {
			return r, fmt.Errorf("waiting for the number of bytes that arrived: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(line)), 10, 64)
		if err != nil {
			return r, fmt.Errorf("the number of bytes that arrived: %w", err)
		}
		arrived += n
	}
	if arrived != sent.Load() {
		return r, fmt.Errorf("%d bytes arrived of %d", arrived, sent.Load())
	}
	return r, nil
}

// parallel runs f on n threads; going says for each whether to go on.
func parallel(ctx context.Context, n int, d time.Duration, f func(i int, going func() bool) error) error {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	errs := make([]error, n)
	began := time.Now()
	var threads sync.WaitGroup
	for i := range n {
		threads.Go(func() {
			runtime.LockOSThread()
			first := true // once at least, however little of its time a busy machine gives this process
			errs[i] = f(i, func() bool {
				more := first || !stop.Load() && time.Since(began) < d
				first = false
				return more
			})
			if errs[i] != nil {
				stop.Store(true)
			}
		})
	}
	threads.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

// flow is a session of datagrams, with the connection that counts for it.
type flow struct {
	fd      socket // of the datagrams
	control socket
	count   *buffered
	send    []byte
	seq     uint64
}

func (c *Client) openFlow(s Spec, echo bool) (*flow, error) {
	path := "/udp"
	if echo {
		path += "?echo=1"
	}
	control, b, err := c.begin(s, path)
	if err != nil {
		return nil, err
	}
	f := &flow{control: control, count: b, fd: -1}
	text, err := b.body(2 * nameBytes)
	if err != nil {
		f.close()
		return nil, err
	}
	size := s.Size
	if size == 0 { // what iperf3 sends: as much as a segment of the connection carries
		if _, size = control.facts(); size < minDatagram {
			size = 1448
		}
		size = min(size, maxDatagram)
	}
	f.send = make([]byte, size)
	if _, err := hex.Decode(f.send[:nameBytes], text); err != nil {
		f.close()
		return nil, fmt.Errorf("the session's name: %w", err)
	}
	if f.fd, err = connect(s.UDP, unix.SOCK_DGRAM, s.Patience, congestion{}); err != nil {
		f.close()
		return nil, err
	}
	f.fd.buffers()
	return f, nil
}

func (f *flow) close() {
	f.control.close()
	if f.fd >= 0 {
		f.fd.close()
	}
}

// next numbers the next datagram.
func (f *flow) next() []byte {
	f.seq++
	binary.BigEndian.PutUint64(f.send[nameBytes:], f.seq)
	return f.send
}

// arrived asks for the session's counters.
func (f *flow) arrived() (datagrams, bytes int64, err error) {
	if err := f.control.writeAll([]byte("\n")); err != nil {
		return 0, 0, fmt.Errorf("asking what arrived: %w", err)
	}
	line, err := f.count.until([]byte("\n"), 64)
	if err != nil {
		return 0, 0, fmt.Errorf("asking what arrived: %w", err)
	}
	if _, err := fmt.Sscan(string(line), &datagrams, &bytes); err != nil {
		return 0, 0, fmt.Errorf("what arrived, %q: %w", line, err)
	}
	return datagrams, bytes, nil
}

// trip sends a datagram and waits for it to come back.
type trip struct {
	*flow
	recv []byte
	to   string
}

func (c *Client) openTrip(s Spec) (*trip, error) {
	if s.Size == 0 {
		s.Size = 64
	}
	f, err := c.openFlow(s, true)
	if err != nil {
		return nil, err
	}
	return &trip{f, make([]byte, maxDatagram), s.UDP.String()}, nil
}

func (t *trip) do() (bool, error) {
	if _, err := t.fd.write(t.next()); err != nil {
		return false, fmt.Errorf("sending a datagram to %s: %w", t.to, err)
	}
	for {
		n, err := t.fd.read(t.recv)
		if err == errTimeout {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("no answer to a datagram to %s: %w", t.to, err)
		}
		// An answer that comes after its time-out is of an earlier number.
		if n == len(t.send) && binary.BigEndian.Uint64(t.recv[nameBytes:]) == t.seq {
			return true, nil
		}
	}
}

// datagrams sends in one direction, as fast as it goes or at a rate, from as many sockets as there
// are threads.
func (c *Client) datagrams(ctx context.Context, s Spec) (Result, error) {
	flows := make([]*flow, s.Threads)
	for i := range flows {
		var err error
		if flows[i], err = c.openFlow(s, false); err != nil {
			return Result{}, err
		}
		defer flows[i].close()
	}
	var sent atomic.Int64
	send := func(d time.Duration) error { return sendAll(ctx, flows, s, d, &sent) }
	if s.WarmUp > 0 {
		if err := send(s.WarmUp); err != nil {
			return Result{}, err
		}
	}
	total := func() (int64, int64, error) { return arrivedOf(flows) }
	if err := sleep.For(ctx, settle); err != nil {
		return Result{}, err
	}
	n0, b0, err := total()
	if err != nil {
		return Result{}, err
	}
	sent.Store(0)
	r, err := c.around(s, func(r *Result) error { return send(s.Duration) })
	if err != nil {
		return r, err
	}
	if err := sleep.For(ctx, settle); err != nil {
		return r, err
	}
	n1, b1, err := total()
	if err != nil {
		return r, err
	}
	r.Operations, r.Bytes, r.Sent, r.Size = n1-n0, b1-b0, sent.Load(), len(flows[0].send)
	r.Lost = max(0, r.Sent-r.Operations)
	return r, nil
}

// sendAll sends from all sockets, and counts what the kernel took.
func sendAll(ctx context.Context, flows []*flow, s Spec, d time.Duration, sent *atomic.Int64) error {
	return parallel(ctx, len(flows), d, func(i int, going func() bool) error {
		p := pace{perSecond: s.Rate / 8 / float64(len(flows)) / float64(len(flows[i].send)), began: time.Now()}
		for going() {
			if !p.due() {
				continue
			}
			_, err := flows[i].fd.write(flows[i].next())
			switch {
			case err == nil:
				sent.Add(1)
			case err == unix.ENOBUFS: // a full queue of this node: the datagram is not sent
			case err == errTimeout:
			default:
				return fmt.Errorf("sending a datagram to %v: %w", s.UDP, err)
			}
		}
		return nil
	})
}

// arrivedOf adds the counters of sessions up.
func arrivedOf(flows []*flow) (datagrams, bytes int64, err error) {
	for _, f := range flows {
		n, b, err := f.arrived()
		if err != nil {
			return 0, 0, err
		}
		datagrams, bytes = datagrams+n, bytes+b
	}
	return datagrams, bytes, nil
}

// settle is how long datagrams that are under way get to arrive before they count as lost.
const settle = 200 * time.Millisecond

// pace spreads datagrams evenly, in bursts of a millisecond at most.
type pace struct {
	perSecond float64 // 0 = as fast as it goes
	began     time.Time
	made      int64
}

// due says whether to send one now; otherwise it has slept a little.
func (p *pace) due() bool {
	if p.perSecond == 0 {
		return true
	}
	now := time.Since(p.began)
	allowed := int64(p.perSecond*now.Seconds()) + 1
	// What was not sent in time is not made up for beyond a moment: a burst would be another test.
	if behind := allowed - p.made; behind > int64(p.perSecond/50)+1 {
		p.made = allowed - int64(p.perSecond/50) - 1
	}
	if p.made < allowed {
		p.made++
		return true
	}
	time.Sleep(min(time.Millisecond/2, time.Duration(float64(time.Second)/p.perSecond)))
	return false
}
