// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// Table is what one nftables table should hold, in the words of nft.
type Table struct {
	Family knftables.Family
	Chains map[string]Chain
	Sets   map[string]Set
	// Elements are those of each set and map, by key; the parts of a concatenation are joined by "
	// . ". The value is "" in sets. Sets that packets fill are not in it.
	Elements map[string]map[string]string
}

// Chain is a chain with its rules. A regular chain has no Hook.
type Chain struct {
	Type     knftables.BaseChainType
	Hook     knftables.BaseChainHook
	Priority knftables.BaseChainPriority
	Device   string // of a netdev chain
	Rules    []string
}

// Set is a set, or with Value a map.
type Set struct {
	Key   string // its type ("ipv4_addr . inet_service")
	Value string // of a map
	// TypeOf says that Key and Value are expressions of the types that are meant: some have no
	// name.
	TypeOf bool
	// Interval says that keys may be prefixes.
	Interval bool
	// Learned says that packets add elements, which expire; Size bounds them.
	Learned bool
	// Lasting says that what is learned has no time of its own: the expression in it says when it
	// goes.
	Lasting bool
	Size    uint64
}

// New is an empty table of a family.
func New(f knftables.Family) *Table {
	return &Table{Family: f, Chains: map[string]Chain{}, Sets: map[string]Set{}, Elements: map[string]map[string]string{}}
}

// Add desires an element.
func (t *Table) Add(set, key, value string) {
	of := t.Elements[set]
	if of == nil {
		of = map[string]string{}
		t.Elements[set] = of
	}
	of[key] = value
}

// Key joins the parts of a concatenation.
func Key(parts ...any) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteString(" . ")
		}
		fmt.Fprint(&b, p)
	}
	return b.String()
}

// ruleHash names the text of a rule, as a comment that the kernel keeps: nft does not give the text
// back as it was written.
func ruleHash(rule string) string {
	h := fnv.New64a()
	h.Write([]byte(rule))
	return fmt.Sprintf("%016x", h.Sum64())
}

// layout names the definitions of a table's sets and base chains. A table of another layout is made
// anew.
func (t *Table) layout() string {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(t.Sets)) {
		fmt.Fprintf(h, "set %s %v\n", name, t.Sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(t.Chains)) {
		if c := t.Chains[name]; c.Hook != "" {
			fmt.Fprintf(h, "chain %s %s %s %s %s\n", name, c.Type, c.Hook, c.Priority, c.Device)
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// maxSetSize is the largest that is looked for.
const maxSetSize = 1 << 22

// SetSizeIn finds out how large the sets of what is on this node are in a table of a layout, when
// it differs in nothing else; the sets become as large. Else it returns what they are here: room,
// of setSizeFor.
func (t *Table) SetSizeIn(layout string, room uint64) uint64 {
	other := *t
	for size := room; layout != "" && size <= maxSetSize; size *= 2 {
		other.Sets = maps.Clone(t.Sets)
		for name, s := range other.Sets {
			if s.Size == room && !s.Learned {
				s.Size = size
				other.Sets[name] = s
			}
		}
		if other.layout() == layout {
			maps.Copy(t.Sets, other.Sets)
			return size
		}
	}
	return room
}

// Object returns the definition of a set as knftables has it.
func (s Set) Object(name string) knftables.Object {
	var flags []knftables.SetFlag
	if s.Interval {
		flags = append(flags, knftables.IntervalFlag)
	}
	var timeout *time.Duration
	var size *uint64
	if s.Learned {
		flags = append(flags, knftables.DynamicFlag)
	}
	if s.Learned && !s.Lasting {
		flags = append(flags, knftables.TimeoutFlag)
	}
	if s.Size > 0 {
		size = &s.Size
	}
	typ, typeOf := s.Key, ""
	if s.Value != "" {
		typ += " : " + s.Value
	}
	if s.TypeOf {
		typ, typeOf = "", typ
	}
	if s.Value == "" {
		return &knftables.Set{Name: name, Type: typ, TypeOf: typeOf, Flags: flags, Timeout: timeout, Size: size}
	}
	return &knftables.Map{Name: name, Type: typ, TypeOf: typeOf, Flags: flags, Timeout: timeout, Size: size}
}

// object returns the definition of a chain as knftables has it.
func (c Chain) object(name string) *knftables.Chain {
	out := &knftables.Chain{Name: name}
	if c.Hook != "" {
		out.Type, out.Hook, out.Priority = &c.Type, &c.Hook, &c.Priority
	}
	if c.Device != "" {
		out.Device = &c.Device
	}
	return out
}

// element returns an element as knftables has it.
func (s Set) element(set, k, v string) *knftables.Element {
	e := &knftables.Element{Key: strings.Split(k, " . ")}
	if s.Value == "" {
		e.Set = set
		return e
	}
	e.Map, e.Value = set, strings.Split(v, " . ")
	return e
}

// AddSet adds a set whose types are written with $addr.
func AddSet(f Family, t *Table, name string, s Set) {
	addr := f.Words().Addr
	s.Key, s.Value = strings.ReplaceAll(s.Key, "$addr", addr), strings.ReplaceAll(s.Value, "$addr", addr)
	t.Sets[name] = s
}

// hash64 names texts.
func Hash(texts ...string) uint64 {
	h := fnv.New64a()
	for _, t := range texts {
		h.Write([]byte(t))
		h.Write([]byte{0})
	}
	return h.Sum64()
}

// Name is that of our tables in each family.
const Name = "weir"

// Hash32 gives bytes a number.
func Hash32(b []byte) uint32 {
	h := fnv.New64a()
	h.Write(b)
	sum := h.Sum(nil)
	return binary.BigEndian.Uint32(sum) ^ binary.BigEndian.Uint32(sum[4:])
}
