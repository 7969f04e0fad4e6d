// SPDX-License-Identifier: Apache-2.0

package nfteval

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/jhash"
)

// registers are those that the expressions of one rule share (NFT_REG32_00 to 15): 4 bytes each.
type registers [64]byte

// at is where a register begins: NFT_REG_1 to 4 of 16 bytes, or one of 4 bytes (8 to 23); -1 = that
// of verdicts.
func at(reg []byte) int {
	switch n := int(number(reg)); {
	case n >= 1 && n <= 4:
		return (n - 1) * 16
	case n >= 8 && n <= 23:
		return (n - 8) * 4
	}
	return -1
}

var errRegister = errors.New("a register that is not there")

// get returns n bytes from a register on.
func (r *registers) get(reg []byte, n int) ([]byte, error) {
	i := at(reg)
	if i < 0 || n < 0 || i+n > len(r) {
		return nil, errRegister
	}
	return r[i : i+n], nil
}

// set writes bytes, and fills the last register with zeros.
func (r *registers) set(reg, value []byte) error {
	n := (len(value) + 3) / 4 * 4
	to, err := r.get(reg, n)
	if err != nil {
		return err
	}
	clear(to)
	copy(to, value)
	return nil
}

func (r *registers) set32(reg []byte, v uint32) error {
	return r.set(reg, binary.NativeEndian.AppendUint32(nil, v))
}

func (r *registers) get32(reg []byte) (uint32, error) {
	b, err := r.get(reg, 4)
	if err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint32(b), nil
}

var on = verdict{code: goOn}
var no = verdict{code: missed}

// expressions are those that this package knows, by the kernel's names. Attributes are those of
// linux/netfilter/nf_tables.h.
var expressions map[string]func(*Walk, *chain, *expression, *registers) (verdict, error)

func init() {
	nothing := func(*Walk, *chain, *expression, *registers) (verdict, error) { return on, nil }
	expressions = map[string]func(*Walk, *chain, *expression, *registers) (verdict, error){
		"counter": nothing, "log": nothing, // only what is shown depends on them
		"limit": limit, "dynset": dynset,
		"rt": route, "exthdr": exthdr,
		"payload": payload, "cmp": compare, "range": between, "bitwise": bitwise, "byteorder": byteorder, "immediate": immediate,
		"meta": meta, "ct": conntrack, "lookup": lookup, "reject": reject, "nat": nat, "fib": fib, "hash": hash, "numgen": numgen,
	}
}

// limit takes it that no rate is used up: a rule about what is over one is not met.
func limit(_ *Walk, _ *chain, e *expression, _ *registers) (verdict, error) {
	const flags, over = 5, 1
	if number(e.attrs[flags])&over != 0 {
		return no, nil
	}
	return on, nil
}

// dynset is what packets add to sets, with a limit for each element where it has an expression.
func dynset(w *Walk, c *chain, e *expression, regs *registers) (verdict, error) {
	const expr = 7
	if e.attrs[expr] == nil {
		return on, nil
	}
	inner, err := attributes(e.attrs[expr])
	if err != nil {
		return on, err
	}
	data, err := attributes(inner[expressionData])
	if err != nil || text(inner[expressionName]) != "limit" {
		return on, err
	}
	return limit(w, c, &expression{text(inner[expressionName]), data}, regs)
}

// route knows where a packet goes; the MTU of the route decides nothing.
func route(w *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, key, nexthop4, nexthop6 = 1, 2, 1, 2
	if k := number(e.attrs[key]); k != nexthop4 && k != nexthop6 || w.NextHop == nil {
		return on, nil
	}
	a, err := w.NextHop(w.Ends.Dst)
	if err != nil {
		return on, err
	}
	return on, regs.set(e.attrs[dreg], a.AsSlice())
}

// exthdr writes options of TCP, which decide nothing, and asks whether there is a header of
// extension: packets that are asked about have none.
func exthdr(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, flags, op, sreg, present, ipv6 = 1, 5, 6, 7, 1, 0
	if _, writes := e.attrs[sreg]; writes {
		return on, nil
	}
	if number(e.attrs[op]) != ipv6 || number(e.attrs[flags]) != present {
		return on, errors.New("reading an option is not known")
	}
	return on, regs.set(e.attrs[dreg], []byte{0})
}

func payload(w *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, base, offset, length, sreg = 1, 2, 3, 4, 5
	if _, writes := e.attrs[sreg]; writes {
		return on, errors.New("writing into packets is not known")
	}
	var b []byte
	switch number(e.attrs[base]) {
	case 0:
		b = w.Link
	case 1:
		b = w.IP
	case 2:
		b = w.IP[min(w.L4, len(w.IP)):]
	default:
		return on, errors.New("a header that is not known")
	}
	from, n := int(number(e.attrs[offset])), int(number(e.attrs[length]))
	if from+n > len(b) {
		return no, nil
	}
	return on, regs.set(e.attrs[dreg], b[from:from+n])
}

func compare(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const sreg, op, data = 1, 2, 3
	want, _, err := datum(e.attrs[data])
	if err != nil {
		return on, err
	}
	have, err := regs.get(e.attrs[sreg], len(want))
	if err != nil {
		return on, err
	}
	c := bytes.Compare(have, want)
	ok := [...]bool{c == 0, c != 0, c < 0, c <= 0, c > 0, c >= 0}
	n := int(number(e.attrs[op]))
	if n >= len(ok) {
		return on, fmt.Errorf("comparison %d is not known", n)
	}
	if !ok[n] {
		return no, nil
	}
	return on, nil
}

func between(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const sreg, op, from, to = 1, 2, 3, 4
	low, _, err := datum(e.attrs[from])
	if err != nil {
		return on, err
	}
	high, _, err := datum(e.attrs[to])
	if err != nil {
		return on, err
	}
	have, err := regs.get(e.attrs[sreg], len(low))
	if err != nil {
		return on, err
	}
	inside := bytes.Compare(have, low) >= 0 && bytes.Compare(have, high) <= 0
	if outside := number(e.attrs[op]) == 1; inside == outside {
		return no, nil
	}
	return on, nil
}

func bitwise(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const sreg, dreg, length, mask, xor, op, data = 1, 2, 3, 4, 5, 6, 7
	n := int(number(e.attrs[length]))
	from, err := regs.get(e.attrs[sreg], n)
	if err != nil {
		return on, err
	}
	out := bytes.Clone(from)
	switch number(e.attrs[op]) {
	case 0:
		m, _, err := datum(e.attrs[mask])
		if err != nil {
			return on, err
		}
		x, _, err := datum(e.attrs[xor])
		if err != nil || len(m) != n || len(x) != n {
			return on, fmt.Errorf("masks of %d and %d bytes for %d: %w", len(m), len(x), n, err)
		}
		for i := range out {
			out[i] = out[i]&m[i] ^ x[i]
		}
	case 1, 2:
		by, _, err := datum(e.attrs[data])
		if err != nil || len(by) != 4 || n != 4 {
			return on, fmt.Errorf("a shift of %d bytes: %w", n, err)
		}
		v, s := binary.NativeEndian.Uint32(out), binary.NativeEndian.Uint32(by)
		if number(e.attrs[op]) == 1 {
			v <<= s
		} else {
			v >>= s
		}
		binary.NativeEndian.PutUint32(out, v)
	default:
		return on, fmt.Errorf("operation %d is not known", number(e.attrs[op]))
	}
	return on, regs.set(e.attrs[dreg], out)
}

func byteorder(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const sreg, dreg, length, size = 1, 2, 4, 5
	n, each := int(number(e.attrs[length])), int(number(e.attrs[size]))
	from, err := regs.get(e.attrs[sreg], n)
	if err != nil || each != 2 && each != 4 && each != 8 || n%each != 0 {
		return on, fmt.Errorf("words of %d in %d bytes: %w", each, n, err)
	}
	out := bytes.Clone(from)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		for i := 0; i < n; i += each {
			for j := range each {
				out[i+j] = from[i+each-1-j]
			}
		}
	}
	return on, regs.set(e.attrs[dreg], out)
}

func immediate(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, data = 1, 2
	value, said, err := datum(e.attrs[data])
	if err != nil {
		return on, err
	}
	if said != nil {
		return *said, nil
	}
	return on, regs.set(e.attrs[dreg], value)
}

func lookup(w *Walk, c *chain, e *expression, regs *registers) (verdict, error) {
	const set, sreg, dreg, flags, inverted = 1, 2, 3, 5, 1
	name := text(e.attrs[set])
	n, ok := w.Table.keyLen[name]
	if !ok {
		return on, fmt.Errorf("there is no set %s", name)
	}
	key, err := regs.get(e.attrs[sreg], n)
	if err != nil {
		return on, err
	}
	found, value, to, err := w.ask(c, name, bytes.Clone(key))
	if err != nil {
		return on, err
	}
	if found == (number(e.attrs[flags])&inverted != 0) {
		return no, nil
	}
	if to != nil {
		return *to, nil
	}
	if reg, ok := e.attrs[dreg]; ok && found {
		return on, regs.set(reg, value)
	}
	return on, nil
}

// ask looks a key up, and remembers what was said.
func (w *Walk) ask(c *chain, set string, key []byte) (found bool, value []byte, to *verdict, err error) {
	if found, value, to, err = w.Table.element(set, key); err != nil {
		return
	}
	l := Lookup{Set: set, Key: key, Found: found, Value: value, Inside: c.name}
	if to != nil {
		l.Leads = to.String()
	}
	w.Lookups = append(w.Lookups, l)
	return
}

func reject(w *Walk, _ *chain, _ *expression, _ *registers) (verdict, error) {
	w.refused = true
	return verdict{code: drop}, nil
}

func nat(w *Walk, c *chain, e *expression, regs *registers) (verdict, error) {
	const kind, addr, proto, source = 1, 3, 5, 0
	is := w.Ends
	address, port := is.Dst, is.DstPort
	if number(e.attrs[kind]) == source {
		address, port = is.Src, is.SrcPort
	}
	if reg, ok := e.attrs[addr]; ok {
		b, err := regs.get(reg, len(address.AsSlice()))
		if err != nil {
			return on, err
		}
		address, _ = netip.AddrFromSlice(b)
	}
	if reg, ok := e.attrs[proto]; ok && w.hasPorts() {
		b, err := regs.get(reg, 2)
		if err != nil {
			return on, err
		}
		low, high := binary.BigEndian.Uint16(b), uint16(0)
		if b, err = regs.get(e.attrs[6], 2); err == nil {
			high = binary.BigEndian.Uint16(b)
		}
		if port < low || port > max(low, high) { // one of a range is the kernel's choice
			port = low
		}
	}
	if number(e.attrs[kind]) == source {
		w.rewrite(address, port, is.Dst, is.DstPort)
		w.Flow.Reply.Dst, w.Flow.Reply.DstPort = w.Ends.Src, w.Ends.SrcPort
		w.Flow.Status |= statusSNAT
	} else {
		w.rewrite(is.Src, is.SrcPort, address, port)
		w.Flow.Reply.Src = w.Ends.Dst
		if w.hasPorts() {
			w.Flow.Reply.SrcPort = w.Ends.DstPort
		}
		w.Flow.Status |= statusDNAT
	}
	w.translated = true
	return verdict{code: accept}, nil
}

func fib(w *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, result, flags, interfaceOut, addrType, ofSource, ofDestination, byInput, present = 1, 2, 3, 1, 3, 1, 2, 8, 32
	if number(e.attrs[result]) == interfaceOut && number(e.attrs[flags])&^present == ofSource|byInput && w.LeadsBack != nil {
		out := uint32(0)
		if back, err := w.LeadsBack(w.Ends.Src, w.In.Index); err != nil {
			return on, err
		} else if back {
			out = uint32(w.In.Index)
		}
		if number(e.attrs[flags])&present != 0 {
			return on, regs.set(e.attrs[dreg], []byte{byte(min(out, 1))})
		}
		return on, regs.set32(e.attrs[dreg], out)
	}
	if number(e.attrs[result]) != addrType {
		return on, errors.New("only types of addresses are known")
	}
	of := w.Ends.Dst
	switch number(e.attrs[flags]) {
	case ofSource:
		of = w.Ends.Src
	case ofDestination:
	default:
		return on, errors.New("flags that are not known")
	}
	kind, err := w.AddrType(of)
	if err != nil {
		return on, err
	}
	return on, regs.set32(e.attrs[dreg], kind)
}

func hash(_ *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const sreg, dreg, length, modulus, seed, offset, kind = 1, 2, 3, 4, 5, 6, 7
	b, err := regs.get(e.attrs[sreg], int(number(e.attrs[length])))
	if err != nil || number(e.attrs[kind]) != 0 {
		return on, fmt.Errorf("a hash that is not known: %w", err)
	}
	h := jhash.Sum(b, number(e.attrs[seed]))
	return on, regs.set32(e.attrs[dreg], uint32(uint64(h)*uint64(number(e.attrs[modulus]))>>32)+number(e.attrs[offset]))
}

func numgen(w *Walk, _ *chain, e *expression, regs *registers) (verdict, error) {
	const dreg, modulus, offset = 1, 2, 4
	n := number(e.attrs[modulus])
	if n == 0 {
		return on, errors.New("none of no numbers can be chosen")
	}
	w.Choices = append(w.Choices, n)
	return on, regs.set32(e.attrs[dreg], w.Pick(n)%n+number(e.attrs[offset]))
}
