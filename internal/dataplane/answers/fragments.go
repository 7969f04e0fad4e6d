// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Fragments puts datagrams together. The zero value is ready for use; it is not safe for concurrent
// use.
type Fragments struct {
	of map[fragmentKey]*datagram
}

const (
	datagramsMost = 128
	datagramTime  = 5 * time.Second // fragments of a datagram come at once, or not at all
	datagramSize  = 1 << 16
)

type fragmentKey struct {
	server, client netip.Addr
	id             uint32
}

type datagram struct {
	since time.Time
	parts []Packet // in the order of their places, none of which overlap
	size  int      // of what the parts have
	whole int      // 0 = the last one has not come
}

// Add takes a fragment, and returns the datagram once it is whole.
func (f *Fragments) Add(p Packet, now time.Time) (Packet, bool) {
	if p.Proto != unix.IPPROTO_UDP {
		return p, false
	}
	k := fragmentKey{p.Server, p.Client, p.ID}
	d := f.of[k]
	if d != nil && now.Sub(d.since) > datagramTime {
		delete(f.of, k)
		d = nil
	}
	if d == nil {
		if f.of == nil {
			f.of = map[fragmentKey]*datagram{}
		}
		f.makeRoom(now)
		d = &datagram{since: now}
		f.of[k] = d
	}
	if !d.add(p) {
		delete(f.of, k) // overlapping fragments are nobody's who means well (RFC 5722)
		return p, false
	}
	if d.whole == 0 || d.size < d.whole {
		return p, false
	}
	delete(f.of, k)
	out := d.parts[0]
	out.Fragmented, out.More = false, false
	out.Payload = make([]byte, 0, d.whole)
	for _, part := range d.parts {
		out.Payload = append(out.Payload, part.Payload...)
	}
	if out.Offset != 0 || len(out.Payload) < 8 {
		return p, false
	}
	return out, out.parseTransport()
}

// makeRoom forgets what is too old, and the oldest where there are too many.
func (f *Fragments) makeRoom(now time.Time) {
	if len(f.of) < datagramsMost {
		return
	}
	var oldest fragmentKey
	first := now.Add(time.Hour)
	for k, d := range f.of {
		if now.Sub(d.since) > datagramTime {
			delete(f.of, k)
		} else if d.since.Before(first) {
			oldest, first = k, d.since
		}
	}
	if len(f.of) >= datagramsMost {
		delete(f.of, oldest)
	}
}

// add reports whether the part fits to the others.
func (d *datagram) add(p Packet) bool {
	end := p.Offset + len(p.Payload)
	if len(p.Payload) == 0 || end > datagramSize || p.More && len(p.Payload)%8 != 0 || d.whole > 0 && (!p.More || end > d.whole) {
		return false
	}
	at := len(d.parts)
	for i, other := range d.parts {
		if p.Offset < other.Offset+len(other.Payload) && other.Offset < end {
			return false
		}
		if other.Offset > p.Offset && i < at {
			at = i
		}
	}
	if !p.More {
		if at < len(d.parts) {
			return false
		}
		d.whole = end
	}
	p.Payload = append([]byte(nil), p.Payload...) // the reader's buffer is used again
	d.parts = append(d.parts, Packet{})
	copy(d.parts[at+1:], d.parts[at:])
	d.parts[at] = p
	d.size += len(p.Payload)
	return true
}
