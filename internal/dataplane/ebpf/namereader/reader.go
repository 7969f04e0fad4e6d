// SPDX-License-Identifier: Apache-2.0

// Package namereader reads those answers of DNS servers that the programs cannot: of many records,
// in fragments, spread over segments of TCP. The programs lead them to a device of the agent's, and
// it sends each on to its pod once the addresses in it are noted, which it has weir_names_learn do
// (bpf/names.c). Programs send nothing to a reader that is not there or has too much to read.
package namereader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
)

// Reader is for one set of programs and their maps. Its counts may be read at any time, the rest is
// Run's.
type Reader struct {
	log     *slog.Logger
	reader  *ebpf.Map // weir_name_reader
	handed  *ebpf.Map // weir_name_handed
	streams *ebpf.Map // weir_name_streams
	teacher teacher

	noted, unasked, unread, full atomic.Uint64

	device    *device
	done      uint32 // of what was handed, so much was read
	beaten    time.Time
	fragments answers.Fragments
	follows   answers.Streams
}

// New makes a reader of the maps and of a copy of the program that reads answers, with maps of its
// own where object.LoadTeacher says; they stay the caller's, which has them until Run returns.
func New(maps map[string]*ebpf.Map, copied *object.Programs, log *slog.Logger) *Reader {
	return &Reader{log: log, reader: maps["weir_name_reader"], handed: maps["weir_name_handed"], streams: maps["weir_name_streams"],
		teacher: teacher{program: copied.Programs[object.NamesProgram], asked: maps["weir_name_asked"], counts: copied.Maps["weir_name_counts"]}}
}

// Counts adds how many answers became what of, in the words of counters.Names.
func (r *Reader) Counts(to map[string]uint64) {
	to["noted"] += r.noted.Load()
	to["unasked"] += r.unasked.Load()
	to["unread"] += r.unread.Load()
	to["full"] += r.full.Load()
}

// CountOn goes on with the counts of a reader before.
func (r *Reader) CountOn(before *Reader) {
	for to, n := range map[*atomic.Uint64]uint64{&r.noted: before.noted.Load(), &r.unasked: before.unasked.Load(), &r.unread: before.unread.Load(), &r.full: before.full.Load()} {
		to.Add(n)
	}
}

const (
	beatEvery = 100 * time.Millisecond
	settles   = 20 * time.Millisecond // in which a packet arrives that a program is just sending
	frameMost = 1 << 17
)

// Run reads until ctx ends, and then what was sent until then.
func (r *Reader) Run(ctx context.Context) error {
	d, err := openDevice()
	if err != nil {
		return err
	}
	defer d.close()
	r.device = d
	buf := make([]byte, frameMost)
	for ctx.Err() == nil {
		if err := r.drain(buf, true); err != nil {
			return err
		}
		if err := r.beat(true); err != nil {
			return err
		}
		if err := d.wait(int(beatEvery / time.Millisecond)); err != nil {
			return fmt.Errorf("waiting for answers of DNS servers: %w", err)
		}
	}
	if err := r.reader.Put(uint32(0), abi.WeirNameReader{}); err != nil {
		return fmt.Errorf("writing map weir_name_reader: %w", err)
	}
	time.Sleep(settles)
	return r.drain(buf, false)
}

// beat tells the programs that the reader is there and how much it has read: all, if so.
func (r *Reader) beat(all bool) error {
	if all {
		if err := r.handed.Lookup(uint32(0), &r.done); err != nil {
			return fmt.Errorf("reading map weir_name_handed: %w", err)
		}
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	if err := r.reader.Put(uint32(0), abi.WeirNameReader{Beat: uint64(now.Nano()), Ifindex: uint32(r.device.index), Done: r.done}); err != nil {
		return fmt.Errorf("writing map weir_name_reader: %w", err)
	}
	return nil
}

// drain reads what is there; more says that the programs may send more.
func (r *Reader) drain(buf []byte, more bool) error {
	for {
		n, err := r.device.read(buf)
		if err != nil {
			return fmt.Errorf("reading answers of DNS servers: %w", err)
		}
		if n == 0 {
			return nil
		}
		r.frame(buf[:n])
		r.done++
		if !more {
			continue
		}
		if err := r.beat(false); err != nil {
			return err
		}
	}
}

// headerSize is that of Ethernet.
const headerSize = 14

// frame reads a frame and sends it on. The programs say in its source address for which interface
// it is.
func (r *Reader) frame(b []byte) {
	if len(b) < headerSize+20 || b[6] != 2 || b[7] != 0 {
		return // no program sent it
	}
	ifindex := binary.NativeEndian.Uint32(b[8:])
	copy(b[6:12], []byte{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}) // that of all host sides
	r.read(ifindex, b[headerSize:])
	if err := r.device.send(b, int(ifindex)); err != nil {
		r.log.Debug("an answer of a DNS server did not go on to its pod", "interface", ifindex, "error", err)
	}
}

func (r *Reader) read(ifindex uint32, b []byte) {
	p, ok := answers.ParsePacket(b)
	now := time.Now()
	if ok && p.Fragmented {
		p, ok = r.fragments.Add(p, now)
		if !ok {
			return
		}
	}
	switch {
	case !ok:
		r.unread.Add(1)
	case p.Proto == unix.IPPROTO_UDP:
		r.learn(ifindex, p, p.Payload, true)
	default:
		r.segment(ifindex, p, now)
	}
}

// segment reads a segment of TCP. The programs know where its stream began, and how far they read
// it.
func (r *Reader) segment(ifindex uint32, p answers.Packet, now time.Time) {
	k := answers.Stream{Server: p.Server, Client: p.Client, Port: p.Port}
	if p.Flags&answers.Rst != 0 {
		r.follows.End(k)
		return
	}
	if len(p.Payload) == 0 {
		return
	}
	var s abi.WeirNameStream
	key := question(ifindex, p.Server, p.Port, 0, unix.IPPROTO_TCP)
	if err := r.streams.Lookup(key, &s); err != nil {
		r.unread.Add(1)
		return
	}
	if !r.follows.Has(k, s.First) {
		r.follows.Begin(k, s.First, s.Next, now)
	}
	messages, lost := r.follows.Add(k, p.Seq, p.Payload, now)
	if lost {
		r.unread.Add(1)
	}
	for _, m := range messages {
		r.learn(ifindex, p, m, false)
	}
}

// learn has the addresses of a message noted. Asked says that a program has found its question.
func (r *Reader) learn(ifindex uint32, p answers.Packet, m []byte, asked bool) {
	id, ok := answers.MessageID(m)
	if !ok {
		return
	}
	a, err := answers.Read(m)
	if errors.Is(err, answers.ErrNoAnswer) {
		return
	}
	if !asked && !r.teacher.answered(question(ifindex, p.Server, p.Port, id, unix.IPPROTO_TCP)) {
		r.unasked.Add(1)
		return
	}
	if err == nil {
		var noted bool
		var full uint64
		if noted, full, err = r.teacher.teach(ifindex, p, a); noted {
			r.noted.Add(1)
		}
		r.full.Add(full)
	}
	if err != nil {
		r.unread.Add(1)
		r.log.Debug("an answer of a DNS server was not read", "server", p.Server, "pod", p.Client, "error", err)
	}
}
