// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"fmt"
	"math"
	"slices"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

// columns are rows of a segment, as its file has them. Without addresses they are for sums.
type columns struct {
	End, Lasted                    []int64
	From, To, What, How, At        []int32
	Sport, Dport                   []int32
	Source4, Destination4          []int32
	Source6, Destination6          []string
	SentPackets, SentBytes         []int64
	ReceivedPackets, ReceivedBytes []int64
	Handshake                      []int32 // nil in segments of versions before, as the next ones
	SentAgain, ReceivedAgain       []int32
	Records, Connections           []int64 // of sums; 0 of what is none
	peers, whats, hows, nodes      int     // how many there are
}

func columnsOf(t *table.Tables) *columns {
	return &columns{peers: len(t.Peers), whats: len(t.Whats), hows: len(t.Hows), nodes: len(t.Nodes)}
}

// row i, or what is wrong with it.
func (c *columns) row(i int) (table.Row, error) {
	r := table.Row{
		End: c.End[i], Lasted: c.Lasted[i], From: c.From[i], To: c.To[i], What: c.What[i], How: c.How[i], At: c.At[i], Sport: uint16(c.Sport[i]), Dport: uint16(c.Dport[i]),
		Sent:     flows.Counters{Packets: uint64(c.SentPackets[i]), Bytes: uint64(c.SentBytes[i])},
		Received: flows.Counters{Packets: uint64(c.ReceivedPackets[i]), Bytes: uint64(c.ReceivedBytes[i])},
	}
	if c.Handshake != nil {
		r.Handshake = uint32(max(c.Handshake[i], 0))
	}
	if c.SentAgain != nil && c.ReceivedAgain != nil {
		r.SentAgain, r.ReceivedAgain = uint32(max(c.SentAgain[i], 0)), uint32(max(c.ReceivedAgain[i], 0))
	}
	if c.Records != nil {
		if c.Records[i] < 0 || c.Records[i] > math.MaxUint32 || c.Connections[i] < 0 || c.Connections[i] > math.MaxUint32 {
			return r, fmt.Errorf("%w: a sum of %d records and %d connections", errTorn, c.Records[i], c.Connections[i])
		}
		r.Records, r.Connections = uint32(c.Records[i]), uint32(c.Connections[i])
	}
	in := func(n int32, of int) bool { return n >= 0 && int(n) < of }
	if !in(r.From, c.peers) || !in(r.To, c.peers) || !in(r.What, c.whats) || !in(r.How, c.hows) || !in(r.At, int(table.AtOther)+c.nodes) {
		return r, fmt.Errorf("%w: a row refers to what is not there", errTorn)
	}
	var err error
	if c.Source4 != nil {
		if r.Source, err = getAddr(c.Source4[i], c.Source6[i]); err == nil {
			r.Destination, err = getAddr(c.Destination4[i], c.Destination6[i])
		}
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", errTorn, err)
	}
	return r, nil
}

// find gives the rows that may be wanted: those that the masks of peers and decisions let through,
// with an End above since and up to until. Rows without addresses are for sums.
func (s *segment) find(t *table.Tables, m *masks, since, until int64, addresses bool, give func(*table.Row) error) (err error) {
	o, err := openTable(s.dir, fileRows)
	if err != nil {
		return err
	}
	defer o.Close()
	if o.NumRows() != int64(s.Records) {
		return fmt.Errorf("%w: %d rows of %d", errTorn, o.NumRows(), s.Records)
	}
	c := columnsOf(t)
	var rows []int32 // nil = all
	if since >= s.From || until < s.Until || m.some() {
		if rows, err = s.candidates(o, c, m, since, until); err != nil || len(rows) == 0 {
			return err
		}
	}
	return s.give(c, o, rows, addresses, give)
}

// give gives rows of those numbers.
func (s *segment) give(c *columns, o opened, rows []int32, addresses bool, give func(*table.Row) error) error {
	if err := c.read(o, rows, addresses); err != nil {
		return err
	}
	for i := range c.End {
		r, err := c.row(i)
		if err != nil {
			return err
		}
		if err := give(&r); err != nil {
			return err
		}
	}
	return nil
}

// atOnce is how many rows each reads at a time.
const atOnce = 32 << 10

// each gives all rows, with memory for some of them.
func (s *segment) each(t *table.Tables, give func(*table.Row) error) error {
	o, err := openTable(s.dir, fileRows)
	if err != nil {
		return err
	}
	defer o.Close()
	if o.NumRows() != int64(s.Records) {
		return fmt.Errorf("%w: %d rows of %d", errTorn, o.NumRows(), s.Records)
	}
	for at := 0; at < s.Records; at += atOnce {
		rows := make([]int32, min(atOnce, s.Records-at))
		for i := range rows {
			rows[i] = int32(at + i)
		}
		if err := s.give(columnsOf(t), o, rows, true, give); err != nil {
			return err
		}
	}
	return nil
}

// candidates are the numbers of the rows that may be wanted, by the columns that say it.
func (s *segment) candidates(o opened, c *columns, m *masks, since, until int64) ([]int32, error) {
	rows := make([]int32, 0, 1024)
	from, err := column(o, "from", nil, int32s)
	if err != nil {
		return nil, err
	}
	to, err := column(o, "to", nil, int32s)
	if err != nil {
		return nil, err
	}
	for i := range from {
		if from[i] < 0 || int(from[i]) >= c.peers || to[i] < 0 || int(to[i]) >= c.peers {
			return nil, fmt.Errorf("%w: a row refers to what is not there", errTorn)
		}
		if m.ends(from[i], to[i]) {
			rows = append(rows, int32(i))
		}
	}
	if m.whats != nil && len(rows) > 0 {
		n, err := column(o, "what", rows, int32s)
		if err != nil {
			return nil, err
		}
		left := rows[:0]
		for i, at := range rows {
			if n[i] < 0 || int(n[i]) >= c.whats {
				return nil, fmt.Errorf("%w: a row refers to what is not there", errTorn)
			}
			if m.whats[n[i]] {
				left = append(left, at)
			}
		}
		rows = left
	}
	if (since >= s.From || until < s.Until) && len(rows) > 0 {
		end, err := column(o, "end", rows, int64s)
		if err != nil {
			return nil, err
		}
		left := rows[:0]
		for i, at := range rows {
			if end[i] > since && end[i] <= until {
				left = append(left, at)
			}
		}
		rows = left
	}
	return rows, nil
}

// read reads the columns of some rows.
func (c *columns) read(o opened, rows []int32, addresses bool) (err error) {
	if _, has := o.Schema().Lookup("records"); has {
		for name, to := range map[string]*[]int64{"records": &c.Records, "connections": &c.Connections} {
			if *to, err = column(o, name, rows, int64s); err != nil {
				return err
			}
		}
	}
	for name, to := range map[string]*[]int64{"end": &c.End, "lasted": &c.Lasted, "sentPackets": &c.SentPackets, "sentBytes": &c.SentBytes, "receivedPackets": &c.ReceivedPackets, "receivedBytes": &c.ReceivedBytes} {
		if *to, err = column(o, name, rows, int64s); err != nil {
			return err
		}
	}
	for name, to := range map[string]*[]int32{"from": &c.From, "to": &c.To, "what": &c.What, "how": &c.How, "at": &c.At, "sport": &c.Sport, "dport": &c.Dport} {
		if *to, err = column(o, name, rows, int32s); err != nil {
			return err
		}
	}
	if !addresses {
		return nil
	}
	for name, to := range map[string]*[]int32{"handshake": &c.Handshake, "sentAgain": &c.SentAgain, "receivedAgain": &c.ReceivedAgain} {
		if _, has := o.Schema().Lookup(name); !has {
			continue
		}
		if *to, err = column(o, name, rows, int32s); err != nil {
			return err
		}
	}
	for name, to := range map[string]*[]int32{"source4": &c.Source4, "destination4": &c.Destination4} {
		if *to, err = column(o, name, rows, int32s); err != nil {
			return err
		}
	}
	for name, to := range map[string]*[]string{"source6": &c.Source6, "destination6": &c.Destination6} {
		if *to, err = column(o, name, rows, texts); err != nil {
			return err
		}
	}
	return nil
}

// masks are which peers and decisions a question is about; nil = all.
type masks struct {
	from, to, either []bool // of peers
	whats            []bool
}

func (m *masks) some() bool {
	return m.from != nil || m.to != nil || m.either != nil || m.whats != nil
}

func (m *masks) ends(from, to int32) bool {
	return (m.from == nil || m.from[from]) && (m.to == nil || m.to[to]) && (m.either == nil || m.either[from] || m.either[to])
}

// none is true when no row can be wanted.
func (m *masks) none() bool {
	for _, of := range [][]bool{m.from, m.to, m.either, m.whats} {
		if of != nil && !anyOf(of) {
			return true
		}
	}
	return false
}

func anyOf(of []bool) bool {
	for _, x := range of {
		if x {
			return true
		}
	}
	return false
}

// masksOf says which peers and decisions a query wants. Peers without an address are wanted where
// the row's own may be: the record decides.
func masksOf(t *table.Tables, q *Query) *masks {
	m := &masks{}
	peers := func(of string) []bool {
		if of == "" {
			return nil
		}
		want, network := make([]bool, len(t.Peers)), isNetwork(of)
		for i := range t.Peers {
			p := &t.Peers[i]
			want[i] = network && p.Pod == "" || flows.IsOf(of, *p)
		}
		return want
	}
	m.from, m.to = peers(q.From), peers(q.To)
	if len(q.Namespaces) > 0 {
		m.either = make([]bool, len(t.Peers))
		for i := range t.Peers {
			m.either[i] = t.Peers[i].Pod != "" && slices.Contains(q.Namespaces, t.Peers[i].Namespace)
		}
	}
	if q.Denied || q.Policy != "" {
		m.whats = make([]bool, len(t.Whats))
		for i := range t.Whats {
			w := &t.Whats[i]
			m.whats[i] = (!q.Denied || w.Verdict != flows.Allowed) && (q.Policy == "" || flows.Decides(q.Policy, w.Egress) || flows.Decides(q.Policy, w.Ingress))
		}
	}
	return m
}
