// SPDX-License-Identifier: Apache-2.0

package names

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/dataplane/nft/nfqueue"
)

const (
	waitingMost = 1024 // packets; of more the rest goes on unread
	togetherMax = 64   // are read before what they say is written
	beatEvery   = 200 * time.Millisecond
	expireEvery = 5 * time.Second
	retryEvery  = 250 * time.Millisecond
	answersMost = 1 << 16 // that are remembered, so that a question has one
	frameMost   = 1 << 17
)

// reader reads the queue. It is for one goroutine.
type reader struct {
	plane   *Plane
	queue   *nfqueue.Queue
	beat    *beater
	streams answers.Streams
	// done are questions that have had their answer, of two halves of the time that the kernel
	// knows a question for.
	done, doneBefore map[answered]bool
	turned           time.Time
	expired          time.Time
}

// answered is a question that had its answer.
type answered struct {
	server, client netip.Addr
	port, id       uint16
}

// Run reads answers until ctx ends. Where the queue is somebody else's, an agent's that is ending
// say, it is tried again.
func (p *Plane) Run(ctx context.Context) {
	if p.lacks != nil {
		return
	}
	told := false
	for ctx.Err() == nil {
		err := p.run(ctx)
		if err == nil {
			return
		}
		if !told {
			p.log.Error("answers of DNS servers are not read, so rules with domain names allow only what is known; trying again", "error", err)
		}
		told = true
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

func (p *Plane) run(ctx context.Context) error {
	q, err := nfqueue.Open(queueNumber, waitingMost)
	if err != nil {
		return err
	}
	defer q.Close()
	b, err := newBeater()
	if err != nil {
		return err
	}
	defer b.close()
	p.reads(b)
	defer p.reads(nil)
	r := &reader{plane: p, queue: q, beat: b, done: map[answered]bool{}}
	buf := make([]byte, frameMost)
	for ctx.Err() == nil {
		b.send()
		if err := q.Wait(beatEvery); err != nil {
			return fmt.Errorf("waiting for answers of DNS servers: %w", err)
		}
		if err := r.drain(buf); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(r.expired) > expireEvery {
			r.expired = now
			p.mu.Lock()
			p.memory.expire(now)
			p.mu.Unlock()
		}
	}
	return r.drain(buf) // from then on rules bypass the queue
}

// reads notes that answers are read, or with nil are no more.
func (p *Plane) reads(b *beater) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beater = b
}

// drain reads what is there, and lets it go on once what it says is written.
func (r *reader) drain(buf []byte) error {
	for {
		last, n := uint32(0), 0
		var all []element
		noted := 0
		for n < togetherMax {
			p, ok, err := r.queue.Read(buf)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			some := r.read(p.Data, time.Now())
			if all = append(all, some...); len(some) > 0 {
				noted++
			}
			last = p.ID
			n++
		}
		if n == 0 {
			return nil
		}
		if len(all) > 0 {
			if err := r.plane.commit(all); err != nil {
				r.plane.unread.Add(uint64(noted))
				r.plane.log.Debug("an answer of a DNS server teaches nothing", "error", err)
			}
		}
		if err := r.queue.AcceptTo(last); err != nil {
			return err
		}
		r.beat.send()
	}
}

// commit writes elements. What cannot be written is written with the next state.
func (p *Plane) commit(all []element) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.writer.write(all)
	if err != nil {
		p.pushed = false
	}
	return err
}

// read reads a packet.
func (r *reader) read(b []byte, now time.Time) []element {
	p, ok := answers.ParsePacket(b)
	switch {
	case !ok || p.Fragmented: // connection tracking has put it together before
		r.plane.unread.Add(1)
		return nil
	case p.Proto == unix.IPPROTO_UDP:
		return r.message(p, p.Payload, now)
	}
	return r.segment(p, now)
}

// segment reads a segment of TCP. A connection is read from its beginning on, or not at all.
func (r *reader) segment(p answers.Packet, now time.Time) (out []element) {
	k := answers.Stream{Server: p.Server, Client: p.Client, Port: p.Port}
	switch {
	case p.Flags&answers.Rst != 0:
		r.streams.End(k)
		return nil
	case p.Flags&answers.Syn != 0:
		if !r.streams.Has(k, p.Seq) {
			r.streams.Begin(k, p.Seq, p.Seq+1, now)
		}
		return nil
	case len(p.Payload) == 0:
		return nil
	}
	messages, lost := r.streams.Add(k, p.Seq, p.Payload, now)
	if lost {
		r.plane.unread.Add(1)
	}
	for _, m := range messages {
		out = append(out, r.message(p, m, now)...)
	}
	return out
}

// message reads a message that answers a question of the pod: the rules have found the question, or
// it came by the pod's own connection.
func (r *reader) message(p answers.Packet, m []byte, now time.Time) []element {
	a, err := answers.Read(m)
	if errors.Is(err, answers.ErrNoAnswer) {
		return nil
	}
	if id, ok := answers.MessageID(m); ok && p.Proto == unix.IPPROTO_UDP && !r.first(answered{p.Server, p.Client, p.Port, id}, now) {
		r.plane.unasked.Add(1)
		return nil
	}
	if err != nil {
		r.plane.unread.Add(1)
		r.plane.log.Debug("an answer of a DNS server was not read", "server", p.Server, "pod", p.Client, "error", err)
		return nil
	}
	r.plane.mu.Lock()
	defer r.plane.mu.Unlock()
	index, ok := r.plane.asks[p.Client]
	if !ok {
		return nil
	}
	return r.plane.learn(index, a, now)
}

// first reports whether a question has had no answer yet. One that is asked again with the same ID
// from the same port after that has to wait for half of askedTime.
func (r *reader) first(q answered, now time.Time) bool {
	if now.Sub(r.turned) > askedTime || len(r.done) >= answersMost {
		r.turned, r.doneBefore, r.done = now, r.done, map[answered]bool{}
	}
	if r.done[q] || r.doneBefore[q] {
		return false
	}
	r.done[q] = true
	return true
}

// beater says to the rules that answers are read, by datagrams to itself that they drop.
type beater struct{ four, six int }

func newBeater() (_ *beater, err error) {
	b := &beater{-1, -1}
	if b.four, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err == nil {
		err = unix.SetsockoptInt(b.four, unix.SOL_SOCKET, unix.SO_MARK, beatMark)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("opening a socket whose packets bear a mark: %w", err)
	}
	if b.six, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err == nil {
		_ = unix.SetsockoptInt(b.six, unix.SOL_SOCKET, unix.SO_MARK, beatMark)
	}
	return b, nil // without IPv6 there are no rules of it either
}

// send says it once; the rules drop the packet, which is no error.
func (b *beater) send() {
	_ = unix.Sendto(b.four, []byte{0}, 0, &unix.SockaddrInet4{Port: queueNumber, Addr: [4]byte{127, 0, 0, 1}})
	if b.six >= 0 {
		_ = unix.Sendto(b.six, []byte{0}, 0, &unix.SockaddrInet6{Port: queueNumber, Addr: [16]byte{15: 1}})
	}
}

func (b *beater) close() {
	for _, fd := range []int{b.four, b.six} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
