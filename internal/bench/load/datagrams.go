// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Datagrams of a flow begin with the flow's number, 8 bytes, and what they are, 1 byte.
const (
	datagramHead = 9
	datagramData = 0
	datagramEnd  = 1 // the sink says what it got
)

// endTries is how often a client asks a sink for its word: that may get lost, too.
const endTries = 5

// Rate is datagrams at a fixed rate.
type Rate struct {
	Size int     // bytes of a datagram's payload, at least 9
	Bits float64 // of payload, a second
}

// step is how often a client sends what is due.
const step = time.Millisecond

// Datagrams sends datagrams at a rate to a sink of datagrams, for a while. Flow.Bytes is what
// arrived; sent is what was sent, which is less than the rate asks for where the client does not
// come round in time. The work of carrying a packet is done in the sender's thread, and so in
// Flow.ClientCPU, as far as the kernel does not leave it to ksoftirqd.
func Datagrams(t Target, d time.Duration, r Rate) (f Flow, sent int64, err error) {
	if r.Size < datagramHead || r.Size > 65507 || r.Bits <= 0 {
		return f, 0, fmt.Errorf("datagrams of %d bytes, %.0f bits a second: want %d to 65507 bytes, and some bits", r.Size, r.Bits, datagramHead)
	}
	if err := pin(t.CPU); err != nil {
		return f, 0, err
	}
	fd, err := datagramSocket(t)
	if err != nil {
		return f, 0, err
	}
	defer rawClose(fd)
	buf := make([]byte, r.Size)
	binary.LittleEndian.PutUint64(buf, uint64(time.Now().UnixNano()))
	d = min(d, t.Limit)
	start, before := time.Now(), threadCPU()
	for now := time.Duration(0); now < d; now = time.Since(start) {
		// What is late by more than a few steps is not sent at once later: no queue would take it.
		due := min(int64(r.Bits/8*now.Seconds()), sent+int64(4*r.Bits/8*step.Seconds())+int64(r.Size))
		for ; sent < due; sent += int64(r.Size) {
			if _, e := rawWrite(fd, buf); e != 0 {
				return f, sent, fmt.Errorf("sending a datagram to %v: %w", t.To, e)
			}
		}
		pause := unix.NsecToTimespec(step.Nanoseconds())
		if err := unix.Nanosleep(&pause, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return f, sent, fmt.Errorf("waiting: %w", err)
		}
	}
	f.Elapsed, f.ClientCPU = time.Since(start), threadCPU()-before
	f.Bytes, f.ServerCPU, err = sinkSays(fd, buf, t)
	if err == nil && f.Bytes > sent {
		err = fmt.Errorf("the sink got %d bytes of %d", f.Bytes, sent)
	}
	return f, sent, err
}

// sinkSays asks a sink of datagrams for the bytes that it got, and its CPU time.
func sinkSays(fd int, buf []byte, t Target) (int64, time.Duration, error) {
	buf[8] = datagramEnd
	if err := timeouts(fd, max(t.Patience/endTries, time.Millisecond)); err != nil {
		return 0, 0, err
	}
	got := make([]byte, 64)
	for range endTries {
		if _, e := rawWrite(fd, buf[:datagramHead]); e != 0 {
			return 0, 0, fmt.Errorf("sending a datagram to %v: %w", t.To, e)
		}
		n, e := rawRead(fd, got)
		if e != 0 && isTimeout(e) {
			continue
		}
		if e != 0 {
			return 0, 0, fmt.Errorf("waiting for the sink's answer: %w", e)
		}
		var bytes, cpu int64
		if _, err := fmt.Sscan(string(got[:n]), &bytes, &cpu); err != nil {
			return 0, 0, fmt.Errorf("the sink answers %q: %w", got[:n], err)
		}
		return bytes, time.Duration(cpu), nil
	}
	return 0, 0, fmt.Errorf("no answer from the sink at %v", t.To)
}

// serveDatagramSink swallows datagrams and says at the end of a flow how many bytes there were and
// what CPU time that took, in ns.
func serveDatagramSink(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20); err != nil {
		return fmt.Errorf("making room for datagrams: %w", err)
	}
	buf := make([]byte, 65536)
	var from sockaddr
	var flow uint64
	var total int64
	var began, took time.Duration
	for {
		n, e := rawReceive(fd, buf, &from)
		switch {
		case e == unix.EINTR || e == unix.ECONNREFUSED:
			continue
		case e != 0:
			return fmt.Errorf("receiving: %w", e)
		case n < datagramHead:
			continue
		}
		if id := binary.LittleEndian.Uint64(buf); id != flow {
			flow, total, began, took = id, 0, threadCPU(), 0
		}
		if buf[8] == datagramData {
			total += int64(n)
			continue
		}
		if took == 0 { // the end may be asked for again
			took = threadCPU() - began
		}
		rawAnswer(fd, fmt.Appendf(nil, "%d %d\n", total, took.Nanoseconds()), &from)
	}
}
