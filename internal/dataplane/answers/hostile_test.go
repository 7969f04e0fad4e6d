// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"testing"
	"time"

	"github.com/weir-net/weir/internal/hostile"
)

// TestHostileEndlessStreams: whatever a server sends by however many connections, what is kept of
// it is bounded, and a message of another connection is read.
func TestHostileEndlessStreams(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a DNS server sends messages by TCP that never end to many connections of a pod", hostile.Link, hostile.EBPF, hostile.Both)
	var s Streams
	segment := make([]byte, 1400)
	segment[0], segment[1] = 0xff, 0xff // a message of the greatest length
	began := time.Now()
	for i := range 4 * streamsMost {
		k := stream1
		k.Port = uint16(i)
		s.Begin(k, 0, 1, began)
		for n := range uint32(40) {
			s.Add(k, 1+n*1400, segment, began.Add(time.Duration(i)))
			if n%2 == 0 { // behind a gap that is never filled
				s.Add(k, 1<<20+n*1400, segment, began.Add(time.Duration(i)))
			}
		}
	}
	if len(s.of) > streamsMost || s.held > streamsSize {
		t.Errorf("%d streams are followed, %d bytes held; at most %d and %d", len(s.of), s.held, streamsMost, streamsSize)
	}
	began = began.Add(time.Second)
	one := stream1
	one.Port = 65000
	s.Begin(one, 0, 1, began)
	for n := range uint32(1 << 20 / 1400) { // behind a gap, all of it
		s.Add(one, 10+n*1400, segment, began)
	}
	if held := s.of[one].held; held > streamSize {
		t.Errorf("%d bytes of one stream are held, at most %d", held, streamSize)
	}
	m := answer(t, 2)
	k := stream1
	k.Port = 65001
	s.Begin(k, 0, 1, began)
	if got, _ := s.Add(k, 1, append([]byte{0, byte(len(m))}, m...), began); len(got) != 1 {
		t.Errorf("%d messages of another stream are read, want 1", len(got))
	}
}
