// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
)

// pushPart sends a part of a snapshot.
func (s *Server) pushPart(f *follower, up stream.Server, p *nodeview.Part) error {
	messages, err := p.Encoded(wire.Encoder{}.Marshal)
	return s.pushAll(f, up, messages, err)
}

// pushAll sends messages that other nodes get, too, where they could be made.
func (s *Server) pushAll(f *follower, up stream.Server, messages [][]byte, err error) error {
	if err != nil {
		return fmt.Errorf("encode what nodes have in common: %w", err)
	}
	for _, m := range messages {
		if err := s.push(f, up, &stream.Response{Changes: m, More: true}); err != nil {
			return err
		}
	}
	return nil
}

// pushChanges sends changes that no other node gets; the last message of them says what last does.
func (s *Server) pushChanges(f *follower, up stream.Server, ch *model.Changes, last *stream.Response) error {
	var before []byte
	for m, err := range (wire.Encoder{}).Messages(ch) {
		if err != nil {
			return fmt.Errorf("encode changes: %w", err)
		}
		if before != nil {
			if err := s.push(f, up, &stream.Response{Changes: before, More: true}); err != nil {
				return err
			}
		}
		before = m
	}
	last.Changes = before
	return s.push(f, up, last)
}

// deliverDelta sends what of a snapshot the agent has not. Of a part of which it lacks most it is
// sent all, which was encoded for others, too: what is encoded for it alone is less than half of a
// snapshot, whatever it says that it has. Agents of a replica that ended lack the same of most
// parts.
func (s *Server) deliverDelta(f *follower, up stream.Server, d *due) error {
	lists := make([]digest.Lists, 0, len(d.parts)+1)
	for _, p := range d.parts {
		lists = append(lists, p.Derived(func(ch *model.Changes) any { return digest.Of(ch) }).(digest.Lists))
	}
	lists = append(lists, digest.OfCached(d.changes, &s.digests))
	lacks := d.held.Compare(lists...)
	for i, p := range d.parts {
		var err error
		switch {
		case lacks.None(lists[i]):
		case lacks.Most(lists[i]):
			err = s.pushPart(f, up, p)
		default:
			messages, failed := p.Piece(lacks.Key(lists[i]), func() ([][]byte, error) { return wire.Encoder{}.Marshal(lacks.Pick(p.Changes())) })
			err = s.pushAll(f, up, messages, failed)
		}
		if err != nil {
			return err
		}
	}
	return s.pushChanges(f, up, lacks.Pick(d.changes), &stream.Response{Settings: d.settings, Delta: stream.DeltaFrom(lacks.Replaced)})
}
