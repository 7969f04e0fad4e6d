// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"sync"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
)

// digests are what a stand-in has of its node's part: of each object the digest alone, with which
// it says what it has as an agent does by its model. A thousand models do not fit on a machine.
type digests struct {
	base    digest.Lists                             // lists of a snapshot's messages, shared with other stand-ins
	changed map[digest.Scope]map[string]digest.Entry // what came later than these
	coming  []digest.Lists                           // what belongs together and is not whole yet
	whole   bool                                     // there is something
}

func newDigests() *digests {
	return &digests{base: digest.Lists{}, changed: map[digest.Scope]map[string]digest.Entry{}}
}

// held describes what is there; nil = nothing is.
func (d *digests) held() *stream.Held {
	if !d.whole {
		return nil
	}
	later := make(digest.Lists, len(d.changed))
	for s, l := range d.changed {
		later[s] = ordered(l)
	}
	return stream.HeldFrom(d.base.Held(later))
}

func ordered(of map[string]digest.Entry) *digest.List {
	return digest.ListOf(slices.SortedFunc(maps.Values(of), digest.Entry.Compare))
}

// take adds what a message brings to what is coming; put makes what is whole the stand-in's.
func (d *digests) take(l digest.Lists) { d.coming = append(d.coming, l) }

func (d *digests) abandon() { d.coming = nil }

func (d *digests) put(resp *stream.Response) error {
	if resp.Snapshot {
		d.base, d.changed, d.whole = digest.Lists{}, map[digest.Scope]map[string]digest.Entry{}, true
	}
	if resp.Delta != nil {
		if err := d.replace(resp.Delta); err != nil {
			return err
		}
	}
	for _, lists := range d.coming {
		for s, l := range lists {
			if resp.Snapshot && d.base[s] == nil && d.changed[s] == nil {
				d.base[s] = l
				continue
			}
			for _, e := range l.Entries() {
				d.change(s, e)
			}
		}
	}
	d.coming = nil
	return nil
}

func (d *digests) change(s digest.Scope, e digest.Entry) {
	if d.changed[s] == nil {
		d.changed[s] = map[string]digest.Entry{}
	}
	d.changed[s][e.Name] = e
}

// replace takes out what was in buckets that are sent anew.
func (d *digests) replace(delta *stream.Delta) error {
	replaced, err := delta.Buckets()
	if err != nil {
		return err
	}
	for s := range replaced {
		for _, e := range d.base[s].Merged(ordered(d.changed[s])).Entries() {
			if replaced.Has(s, e.Name) {
				e.Sum = digest.Sum{}
				d.change(s, e)
			}
		}
	}
	return nil
}

// sharedLists are the digests of messages that several stand-ins get.
type sharedLists struct {
	mu    sync.Mutex
	known map[uint64]*sharedList
}

type sharedList struct {
	once  sync.Once
	lists digest.Lists
	marks map[string]string
	err   error
}

// mostShared is more than a snapshot has messages.
const mostShared = 8192

// of returns what a message says, which has a hash.
func (x *sharedLists) of(hash uint64, message []byte) (*sharedList, error) {
	x.mu.Lock()
	have := x.known[hash]
	if have == nil {
		if x.known == nil || len(x.known) >= mostShared {
			x.known = map[uint64]*sharedList{}
		}
		have = &sharedList{}
		x.known[hash] = have
	}
	x.mu.Unlock()
	have.once.Do(func() {
		d, err := (&wire.Decoder{Expression: expression}).Decode(message)
		if have.err = err; err == nil {
			have.lists, have.marks = digest.Of(d.Changes), marks(d.Changes)
		}
	})
	return have, have.err
}
