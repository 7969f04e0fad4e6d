// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Stream is a TCP connection, in the direction from the server.
type Stream struct {
	Server, Client netip.Addr
	Port           uint16 // the client's
}

// Streams puts messages together that TCP carries. It waits for nothing: a segment that fills a gap
// brings all messages that are whole then. The zero value is ready for use; it is not safe for
// concurrent use.
type Streams struct {
	of   map[Stream]*stream
	held int // bytes, of all
}

const (
	streamsMost = 1024
	streamTime  = 2 * time.Minute
	streamSize  = 256 << 10 // bytes of a stream that wait for what is before them, or for their end
	streamsSize = 16 << 20  // of all
)

type stream struct {
	first uint32 // sequence number of the server's SYN
	next  uint32 // of what follows data
	data  []byte // from the beginning of a message on
	later []segment
	held  int // bytes of data and later
	lost  bool
	seen  time.Time
}

type segment struct {
	seq  uint32
	data []byte
}

// Has reports whether a stream that began with this sequence number is followed.
func (s *Streams) Has(k Stream, first uint32) bool {
	t := s.of[k]
	return t != nil && t.first == first
}

// Begin follows a stream, whose next message begins with the sequence number next.
func (s *Streams) Begin(k Stream, first, next uint32, now time.Time) {
	if s.of == nil {
		s.of = map[Stream]*stream{}
	}
	s.End(k)
	if len(s.of) >= streamsMost {
		s.makeRoom(now)
	}
	s.of[k] = &stream{first: first, next: next, seen: now}
}

// End forgets a stream.
func (s *Streams) End(k Stream) {
	if t := s.of[k]; t != nil {
		s.held -= t.held
		delete(s.of, k)
	}
}

// makeRoom forgets what was silent for long, or else what was so the longest.
func (s *Streams) makeRoom(now time.Time) {
	var oldest Stream
	first := now.Add(time.Hour)
	for k, t := range s.of {
		if now.Sub(t.seen) > streamTime {
			s.End(k)
		} else if t.seen.Before(first) {
			oldest, first = k, t.seen
		}
	}
	if len(s.of) >= streamsMost || s.held >= streamsSize/2 {
		s.End(oldest)
	}
}

// Add takes a segment of a stream that is followed, and returns the messages that it completes.
// Lost says that what the stream has is not read any more: too much of it waits.
func (s *Streams) Add(k Stream, seq uint32, data []byte, now time.Time) (messages [][]byte, lost bool) {
	t := s.of[k]
	if t == nil || t.lost {
		return nil, true
	}
	t.seen = now
	s.held -= t.held
	messages = t.add(seq, data)
	t.held = len(t.data)
	for _, l := range t.later {
		t.held += len(l.data)
	}
	if t.held > streamSize || len(t.later) > streamSize/512 {
		t.lost, t.data, t.later, t.held = true, nil, nil, 0
	}
	s.held += t.held
	if s.held > streamsSize {
		s.makeRoom(now)
	}
	return messages, t.lost
}

func (t *stream) add(seq uint32, data []byte) (messages [][]byte) {
	if len(data) == 0 {
		return nil
	}
	if !t.take(seq, data) {
		t.later = append(t.later, segment{seq, append([]byte(nil), data...)})
		return nil
	}
	for again := true; again; {
		again = false
		for i, l := range t.later {
			if t.take(l.seq, l.data) {
				t.later = append(t.later[:i], t.later[i+1:]...)
				again = true
				break
			}
		}
	}
	for len(t.data) >= 2 {
		size := 2 + int(binary.BigEndian.Uint16(t.data))
		if len(t.data) < size {
			break
		}
		messages = append(messages, t.data[2:size:size])
		t.data = t.data[size:]
	}
	if messages != nil {
		t.data = append([]byte(nil), t.data...) // lets go of what was read
	}
	return messages
}

// take adds what of a segment is new where it follows data, and reports whether it is dealt with.
func (t *stream) take(seq uint32, data []byte) bool {
	behind := int32(t.next - seq) // bytes of it that came before
	if behind < 0 {
		return false
	}
	if int(behind) < len(data) {
		t.data = append(t.data, data[behind:]...)
		t.next += uint32(len(data) - int(behind))
	}
	return true
}
