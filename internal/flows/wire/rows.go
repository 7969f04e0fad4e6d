// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

// Rows are the records of a batch. What they refer to is as the message has it, and is read where
// it is not known already.
type Rows struct {
	rows  []table.Row
	batch *Batch
	node  string
}

// Rows returns the records. Who says so makes their node another: what a batch says of that is a
// node's word.
func (b *Batch) Rows(node string) (*Rows, error) {
	n := len(b.End)
	if n > MostRecords {
		return nil, fmt.Errorf("%w: it has %d records", errBatch, n)
	}
	for _, column := range []int{len(b.Lasted), len(b.From), len(b.To), len(b.What), len(b.How), len(b.At), len(b.Sport), len(b.Dport), len(b.Source), len(b.Destination),
		len(b.SentPackets), len(b.SentBytes), len(b.ReceivedPackets), len(b.ReceivedBytes)} {
		if column != n {
			return nil, fmt.Errorf("%w: a column has %d entries of %d", errBatch, column, n)
		}
	}
	for _, column := range [][]uint32{b.Handshake, b.SentAgain, b.ReceivedAgain, b.Records, b.Connections} { // or none
		if column != nil && len(column) != n {
			return nil, fmt.Errorf("%w: a column has %d entries of %d", errBatch, len(column), n)
		}
	}
	out := &Rows{rows: make([]table.Row, n), batch: b, node: node}
	for i := range out.rows {
		var err error
		if out.rows[i], err = b.row(i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Len is how many there are.
func (r *Rows) Len() int {
	if r == nil {
		return 0
	}
	return len(r.rows)
}

// End of record i, in milliseconds since 1970.
func (r *Rows) End(i int) int64 { return r.rows[i].End }

// Size is about how many bytes the texts of record i have.
func (r *Rows) Size(i int) int {
	x := &r.rows[i]
	return len(r.node) + len(r.batch.Peers[x.From]) + len(r.batch.Peers[x.To]) + len(r.batch.Whats[x.What]) + len(r.batch.Hows[x.How])
}

// knownMost bounds the bytes of encodings that are known: a peer that encodes the same entry in
// many ways has them read again.
const knownMost = 16 << 20

// Known are the entries of some tables by their encoding in messages.
type Known struct {
	peers, whats, hows map[string]int32
	bytes              int
}

// NewKnown knows none.
func NewKnown() *Known {
	return &Known{peers: map[string]int32{}, whats: map[string]int32{}, hows: map[string]int32{}}
}

// Merging are rows that get the numbers of other tables.
type Merging struct {
	rows  *Rows
	to    *table.Numbers
	known *Known
	peers entries[flows.Peer]
	whats entries[table.What]
	hows  entries[table.How]
}

// Into prepares the rows for tables, of which known knows entries: it reads those that are not
// known, and adds none. The error says that one means nothing.
func (r *Rows) Into(to *table.Numbers, known *Known) (m *Merging, err error) {
	if known.bytes > knownMost {
		*known = *NewKnown()
	}
	m = &Merging{rows: r, to: to, known: known}
	if m.peers, err = read(r.batch.Peers, known.peers, getPeer); err != nil {
		return nil, err
	}
	if m.whats, err = read(r.batch.Whats, known.whats, getWhat); err != nil {
		return nil, err
	}
	m.hows, err = read(r.batch.Hows, known.hows, getHow)
	return m, err
}

// Row is record i with the numbers of the other tables, which have what it refers to then, and
// nothing else of the batch: tables have entries of rows alone.
func (m *Merging) Row(i int) table.Row {
	r := m.rows.rows[i]
	r.From, r.To = m.peers.number(r.From, m.known, m.known.peers, m.to.Peer), m.peers.number(r.To, m.known, m.known.peers, m.to.Peer)
	r.What = m.whats.number(r.What, m.known, m.known.whats, m.to.What)
	r.How = m.hows.number(r.How, m.known, m.known.hows, func(h *table.How) int32 { return m.to.How(*h) })
	if m.to.Peers[r.From].Pod != "" {
		r.Source = [16]byte{}
	}
	if m.to.Peers[r.To].Pod != "" {
		r.Destination = [16]byte{}
	}
	m.to.SetNode(&r, m.rows.node)
	return r
}

// entries of one of a batch's tables: their numbers in other tables, or, below 0, where they are
// among the new ones.
type entries[T any] struct {
	encoded [][]byte
	numbers []int32
	fresh   []T
}

func read[T any](encoded [][]byte, known map[string]int32, decode func([]byte) (T, error)) (entries[T], error) {
	e := entries[T]{encoded: encoded, numbers: make([]int32, len(encoded))}
	for i, text := range encoded {
		if number, is := known[string(text)]; is {
			e.numbers[i] = number
			continue
		}
		entry, err := decode(text)
		if err != nil {
			return e, err
		}
		e.fresh = append(e.fresh, entry)
		e.numbers[i] = -int32(len(e.fresh))
	}
	return e, nil
}

// number of entry i, which is added where it is new.
func (e *entries[T]) number(i int32, of *Known, known map[string]int32, add func(*T) int32) int32 {
	n := e.numbers[i]
	if n < 0 {
		n = add(&e.fresh[-n-1])
		e.numbers[i], known[string(e.encoded[i])] = n, n
		of.bytes += len(e.encoded[i]) + 64
	}
	return n
}
