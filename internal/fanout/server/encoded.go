// SPDX-License-Identifier: Apache-2.0

package server

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
)

// encodedFor is how long the messages of changes are kept for other nodes that get the same, and
// mostEncoded of how many changes. Nodes that a change concerns take it within one Interval, those
// that read slowly later, and with more changes.
const (
	encodedFor  = time.Second
	mostEncoded = 256
	// morePolicies are more at once than are kept: each node gets others of them, and a hundred
	// nodes' would be hundreds of MiB where policies come by the thousand.
	morePolicies = 8
)

// encodings are the messages of changes that some node was just sent: a pod that many nodes' rules
// are about changes for all of them alike. It is safe for concurrent use.
type encodings struct {
	seed maphash.Seed

	mu    sync.Mutex
	known map[uint64]*encoding
}

// encoding is what became of some changes, which it keeps: while they are there no other value has
// the address of one of theirs.
type encoding struct {
	changes *model.Changes
	at      time.Time

	once     sync.Once
	messages [][]byte
	err      error
}

func newEncodings() *encodings {
	return &encodings{seed: maphash.MakeSeed(), known: map[uint64]*encoding{}}
}

// of returns the messages of changes.
func (e *encodings) of(ch *model.Changes, now time.Time) ([][]byte, error) {
	if ch.ServiceCIDRsChanged || ch.ReservedChanged || len(ch.Policies) > morePolicies {
		return wire.Encoder{}.Marshal(ch)
	}
	key := e.key(ch)
	e.mu.Lock()
	have := e.known[key]
	if have == nil {
		if len(e.known) >= mostEncoded {
			for k, old := range e.known {
				if now.Sub(old.at) > encodedFor {
					delete(e.known, k)
				}
			}
		}
		have = &encoding{changes: ch, at: now}
		if len(e.known) < mostEncoded {
			e.known[key] = have
		}
	}
	e.mu.Unlock()
	have.once.Do(func() { have.messages, have.err = wire.Encoder{}.Marshal(have.changes) })
	return have.messages, have.err
}

// key distinguishes changes by their objects' keys and the addresses of their values, in any order:
// values are never changed. Nobody who does not know the seed can make two that are alike.
func (e *encodings) key(ch *model.Changes) (sum uint64) {
	sum += keyOf(e.seed, 1, ch.Namespaces)
	sum += keyOf(e.seed, 2, ch.Pods)
	sum += keyOf(e.seed, 3, ch.Nodes)
	sum += keyOf(e.seed, 4, ch.Services)
	sum += keyOf(e.seed, 5, ch.Slices)
	sum += keyOf(e.seed, 6, ch.Policies)
	sum += keyOf(e.seed, 7, ch.Staged)
	sum += keyOf(e.seed, 8, ch.Tiers)
	sum += keyOf(e.seed, 9, ch.NetworkSets)
	sum += keyOf(e.seed, 10, ch.ServiceAccounts)
	sum += keyOf(e.seed, 11, ch.HostEndpoints)
	sum += keyOf(e.seed, 12, ch.Pools)
	sum += keyOf(e.seed, 13, ch.Blocks)
	sum += keyOf(e.seed, 14, ch.BGPConfigs)
	sum += keyOf(e.seed, 15, ch.BGPPeers)
	sum += keyOf(e.seed, 16, ch.BGPFilters)
	sum += keyOf(e.seed, 17, ch.EgressPolicies)
	return sum
}

func keyOf[K comparable, V any](seed maphash.Seed, kind int, of map[K]*V) (sum uint64) {
	type object struct {
		kind  int
		key   K
		value *V
	}
	for k, v := range of {
		sum += maphash.Comparable(seed, object{kind, k, v})
	}
	return sum
}
