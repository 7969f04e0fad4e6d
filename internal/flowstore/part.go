// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/flows/table"
	"github.com/weir-net/weir/internal/flows/wire"
)

// part are records in memory, which become a segment.
type part struct {
	*table.Numbers
	known *wire.Known // of the entries of Numbers, those that came in messages
	rows  []table.Row
	began time.Time // when its first record came
	// oldest is the least End, in milliseconds since 1970.
	oldest int64
	// positions and lost are as of its end: of Store.positions, and what was lost since the part
	// before.
	positions map[string]*position
	lost      map[string]uint64
	// Of one that was merged:
	first  uint64
	level  int
	coarse int64
	of     uint64
}

func newPart(rows []table.Row) *part {
	return &part{Numbers: table.NewNumbers(), known: wire.NewKnown(), rows: rows[:0]}
}

// all are the rows of a part; who asks has those that were there, as rows and tables only grow.
func all(rows []table.Row) iter.Seq[*table.Row] {
	return func(yield func(*table.Row) bool) {
		for i := range rows {
			if !yield(&rows[i]) {
				return
			}
		}
	}
}

// write makes the files of a segment in a folder. The part's rows and peers get the order that
// makes them small; nobody else may have the part's rows meanwhile, except who read them before.
func (p *part) write(dir string) (zone, error) {
	peers, at := table.Ordered(p.Peers)
	t := &table.Tables{Peers: peers, Whats: p.Whats, Hows: p.Hows, Nodes: p.Nodes}
	type place struct {
		ends uint64 // both peers
		row  int32
	}
	order := make([]place, len(p.rows))
	for i := range p.rows {
		order[i] = place{uint64(at[p.rows[i].From])<<32 | uint64(at[p.rows[i].To]), int32(i)}
	}
	slices.SortFunc(order, func(a, b place) int { return cmp.Or(cmp.Compare(a.ends, b.ends), cmp.Compare(a.row, b.row)) })
	z := zone{Records: len(p.rows), From: math.MaxInt64, Until: math.MinInt64, Names: newBloom(namesOf(peers)), Positions: p.positions, Lost: p.lost,
		First: p.first, Level: p.level, Coarse: p.coarse, Of: p.of}
	for i := range p.rows {
		z.From, z.Until = min(z.From, p.rows[i].End), max(z.Until, p.rows[i].End)
	}
	inOrder := func(yield func(*table.Row) bool) {
		for _, o := range order {
			r := p.rows[o.row]
			r.From, r.To = int32(o.ends>>32), int32(o.ends&math.MaxUint32)
			if !yield(&r) {
				return
			}
		}
	}
	put := func(i int, to *tableRow) *table.Row {
		r := &p.rows[order[i].row]
		putRow(r, to)
		to.From, to.To = int32(order[i].ends>>32), int32(order[i].ends&math.MaxUint32)
		return r
	}
	var err error
	if !slices.ContainsFunc(p.rows, func(r table.Row) bool { return r.Records > 0 }) {
		err = writeTable(dir, fileRows, len(order), func(i int, to *tableRow) error { put(i, to); return nil })
	} else {
		err = writeTable(dir, fileRows, len(order), func(i int, to *tableSums) error {
			r := put(i, &to.tableRow)
			to.Records, to.Connections = int64(r.Records), int64(r.Connections)
			return nil
		})
	}
	if err == nil {
		err = writeTables(dir, t)
	}
	if err == nil {
		err = rollUp(inOrder, t).write(dir)
	}
	return z, err
}

func putRow(r *table.Row, to *tableRow) {
	*to = tableRow{
		End: r.End, Lasted: r.Lasted, Sport: int32(r.Sport), Dport: int32(r.Dport), What: r.What, How: r.How, At: r.At,
		SentPackets: int64(r.Sent.Packets), SentBytes: int64(r.Sent.Bytes), ReceivedPackets: int64(r.Received.Packets), ReceivedBytes: int64(r.Received.Bytes),
		Handshake: int32(min(r.Handshake, math.MaxInt32)), SentAgain: int32(r.SentAgain), ReceivedAgain: int32(r.ReceivedAgain),
	}
	to.Source4, to.Source6 = putAddr(r.Source)
	to.Destination4, to.Destination6 = putAddr(r.Destination)
}

// putAddr is an address in two columns; 0.0.0.0 is an IPv6 text.
func putAddr(a [16]byte) (four int32, six string) {
	if a == ([16]byte{}) {
		return 0, ""
	}
	if addr := table.AddrOf(a); addr.Is4() {
		b := addr.As4()
		if n := binary.BigEndian.Uint32(b[:]); n != 0 {
			return int32(n), ""
		}
	}
	return 0, string(a[:])
}

// getAddr is what putAddr was given.
func getAddr(four int32, six string) (a [16]byte, err error) {
	switch {
	case four != 0:
		a[10], a[11] = 0xff, 0xff
		binary.BigEndian.PutUint32(a[12:], uint32(four))
	case len(six) == len(a):
		copy(a[:], six)
	case six != "":
		err = fmt.Errorf("an address of %d bytes", len(six))
	}
	return a, err
}

func writeTables(dir string, t *table.Tables) error {
	err := writeTable(dir, filePeers, len(t.Peers), func(i int, to *tablePeer) error { return putPeer(&t.Peers[i], to) })
	if err == nil {
		err = writeTable(dir, fileWhats, len(t.Whats), func(i int, to *tableWhat) error { return putWhat(&t.Whats[i], to) })
	}
	if err == nil {
		err = writeTable(dir, fileHows, len(t.Hows), func(i int, to *tableHow) error {
			h := &t.Hows[i]
			*to = tableHow{Ended: h.Ended, Protocol: h.Protocol, ICMP: h.ICMP, Path: h.Path, Return: h.Return, TCPFlags: h.TCPFlags, HandedOn: h.HandedOn, DSR: h.DSR, SNAT: h.SNAT}
			return nil
		})
	}
	if err == nil {
		err = writeTable(dir, fileNodes, len(t.Nodes), func(i int, to *tableName) error { to.Name = t.Nodes[i]; return nil })
	}
	return err
}
