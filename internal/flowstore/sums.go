// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/flows"
)

// texts of a roll-up, which have numbers in its files.
func (u *rollup) texts() (sorted []string, number map[string]int32) {
	number = map[string]int32{}
	for i := range u.outcomes {
		o := &u.outcomes[i]
		for _, t := range []string{o.Verdict, o.Reason, o.Protocol, o.Rule.Kind, o.Rule.Name, o.Rule.Tier, o.Rule.Detail} {
			number[t] = 0
		}
	}
	for i := range u.workloads {
		number[u.workloads[i].Namespace] = 0
	}
	sorted = slices.Sorted(maps.Keys(number))
	for i, t := range sorted {
		number[t] = int32(i)
	}
	return sorted, number
}

// write makes the files of a roll-up.
func (u *rollup) write(dir string) error {
	names, number := u.texts()
	err := writeTable(dir, fileNames, len(names), func(i int, to *tableName) error { to.Name = names[i]; return nil })
	if err == nil {
		err = writeTable(dir, fileWorkloads, len(u.workloads), func(i int, to *tableWorkload) error {
			*to = tableWorkload{Namespace: u.workloads[i].Namespace, Name: u.workloads[i].Name}
			return nil
		})
	}
	if err == nil {
		err = writeTable(dir, fileOutcomes, len(u.outcomes), func(i int, to *tableOutcome) error {
			o, s := &u.outcomes[i], u.byOutcome[i]
			*to = tableOutcome{Verdict: number[o.Verdict], Reason: number[o.Reason], Protocol: number[o.Protocol], Side: int32(o.Side), Kind: number[o.Rule.Kind], Name: number[o.Rule.Name],
				Tier: number[o.Rule.Tier], Detail: number[o.Rule.Detail], Records: int64(s.Records), Connections: int64(s.Connections), Packets: int64(s.Packets), Bytes: int64(s.Bytes)}
			return nil
		})
	}
	if err == nil {
		keys := slices.SortedFunc(maps.Keys(u.spaces), func(a, b spaces) int {
			return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Side, b.Side))
		})
		err = writeTable(dir, fileSpaces, len(keys), func(i int, to *tableSpaces) error {
			k, s := keys[i], u.spaces[keys[i]]
			*to = tableSpaces{From: number[k.From], To: number[k.To], Verdict: number[k.Verdict], Side: int32(k.Side), Records: int64(s.Records), Connections: int64(s.Connections),
				Packets: int64(s.Packets), Bytes: int64(s.Bytes)}
			return nil
		})
	}
	if err == nil {
		keys := slices.SortedFunc(maps.Keys(u.pairs), func(a, b pair) int {
			return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Outcome, b.Outcome))
		})
		err = writeTable(dir, filePairs, len(keys), func(i int, to *tablePair) error {
			k, s := keys[i], u.pairs[keys[i]]
			*to = tablePair{From: k.From, To: k.To, Outcome: k.Outcome, Port: int32(k.Port), Records: int64(s.Records), Connections: int64(s.Connections), Packets: int64(s.Packets), Bytes: int64(s.Bytes)}
			return nil
		})
	}
	return err
}

// numbersOf are columns of a file that is read, which are as long as one another.
type numbersOf struct {
	o    opened
	rows []int32 // nil = all
	err  error
}

func (n *numbersOf) int32s(name string) (out []int32) {
	if n.err == nil {
		out, n.err = column(n.o, name, n.rows, int32s)
	}
	return out
}

// below is int32s of which each is 0 or more, and below a bound.
func (n *numbersOf) below(name string, bound int) []int32 {
	out := n.int32s(name)
	for _, v := range out {
		if v < 0 || int(v) >= bound {
			n.err = fmt.Errorf("%w: %s refers to what is not there", errTorn, name)
			return nil
		}
	}
	return out
}

func (n *numbersOf) sums() []Sum {
	var of [4][]int64
	for i, name := range []string{"records", "connections", "packets", "bytes"} {
		if n.err == nil {
			of[i], n.err = column(n.o, name, n.rows, int64s)
		}
	}
	if n.err != nil {
		return nil
	}
	out := make([]Sum, len(of[0]))
	for i := range out {
		out[i] = Sum{Records: uint64(of[0][i]), Connections: uint64(of[1][i]), Packets: uint64(of[2][i]), Bytes: uint64(of[3][i])}
	}
	return out
}

// only leaves the rows that are wanted.
func (n *numbersOf) only(count int, want func(i int) bool) {
	n.rows = make([]int32, 0, count)
	for i := range count {
		if want(i) {
			n.rows = append(n.rows, int32(i))
		}
	}
}

// readNumbers reads columns of a file.
func (s *segment) readNumbers(file string, read func(*numbersOf)) error {
	o, err := openTable(s.dir, file)
	if err != nil {
		return err
	}
	defer o.Close()
	n := &numbersOf{o: o}
	read(n)
	return n.err
}

func (s *segment) readNames() (names []string, err error) {
	o, err := openTable(s.dir, fileNames)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return column(o, "name", nil, texts)
}

// readSpaces reads the roll-up by namespaces, of those between two; empty = all.
func (s *segment) readSpaces(u *rollup, from, to string) error {
	names, err := s.readNames()
	if err != nil {
		return err
	}
	u.spaces = map[spaces]Sum{}
	return s.readNumbers(fileSpaces, func(n *numbersOf) {
		if from != "" || to != "" {
			f, t := n.below("from", len(names)), n.below("to", len(names))
			n.only(min(len(f), len(t)), func(i int) bool { return (from == "" || names[f[i]] == from) && (to == "" || names[t[i]] == to) })
		}
		f, t := n.below("from", len(names)), n.below("to", len(names))
		verdict, of := n.below("verdict", len(names)), n.below("side", int(sides))
		for i, sum := range n.sums() {
			u.spaces[spaces{From: names[f[i]], To: names[t[i]], Verdict: names[verdict[i]], Side: side(of[i])}] = sum
		}
	})
}

// readOutcomes reads the roll-up by outcome; denied = of what was denied or dropped.
func (s *segment) readOutcomes(u *rollup, denied bool) error {
	names, err := s.readNames()
	if err != nil {
		return err
	}
	return s.readNumbers(fileOutcomes, func(n *numbersOf) {
		if denied {
			verdict := n.below("verdict", len(names))
			n.only(len(verdict), func(i int) bool { return names[verdict[i]] != flows.Allowed })
		}
		of := map[string][]int32{"side": n.below("side", int(sides))}
		for _, name := range []string{"verdict", "reason", "protocol", "kind", "name", "tier", "detail"} {
			of[name] = n.below(name, len(names))
		}
		u.byOutcome = n.sums()
		u.outcomes = make([]outcome, len(u.byOutcome))
		for i := range u.outcomes {
			text := func(name string) string { return names[of[name][i]] }
			o := outcome{Verdict: text("verdict"), Reason: text("reason"), Protocol: text("protocol"), Side: side(of["side"][i])}
			o.Rule.Kind, o.Rule.Name, o.Rule.Tier, o.Rule.Detail = text("kind"), text("name"), text("tier"), text("detail")
			u.outcomes[i] = o
		}
	})
}

// readPairs reads the finest roll-up, and that by outcome.
func (s *segment) readPairs(u *rollup) error {
	if err := s.readOutcomes(u, false); err != nil {
		return err
	}
	err := readTable(s.dir, fileWorkloads, 2*s.Records, func(x *tableWorkload) error {
		u.workloads = append(u.workloads, Workload{Namespace: x.Namespace, Name: x.Name})
		return nil
	})
	if err != nil {
		return err
	}
	return s.readNumbers(filePairs, func(n *numbersOf) {
		from, to := n.below("from", len(u.workloads)), n.below("to", len(u.workloads))
		of, port := n.below("outcome", len(u.outcomes)), n.int32s("port")
		sums := n.sums()
		if n.err != nil {
			return
		}
		if len(sums) > s.Records {
			n.err = errors.Join(errTorn, errors.New("more sums than records"))
			return
		}
		u.pairs = make(map[pair]Sum, len(sums))
		for i, sum := range sums {
			u.pairs[pair{From: from[i], To: to[i], Outcome: of[i], Port: uint16(port[i])}] = sum
		}
	})
}
