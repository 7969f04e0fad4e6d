// SPDX-License-Identifier: Apache-2.0

package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
)

// TableName is that of the tables whose rules lead answers to the queue. They are written by
// netlink: the nft program cannot note parts of a message of DNS in a set.
const TableName = "weir-names"

// Chains that count; the rest are read off the rules below.
const (
	chainUntrusted = "untrusted"
	chainUnasked   = "unasked"
	chainUnread    = "unread"
)

const (
	queueNumber = 5185
	askedTime   = 5 * time.Second // for an answer; resolvers ask again then
	askedSize   = 1 << 18
	// A pod may ask so many questions a second, and so many of the answers to it are read: it takes
	// no room from others.
	eachRate, eachBurst = 5000, 500
	beatTime            = time.Second
	beatMark            = 0x0bd00000 // of the bits that Weir has of packet marks, as the agent's own
)

// rules are the content of a table: which pods ask, and whom.
type rules struct {
	pods, servers []netip.Addr
}

func (r rules) equal(o rules) bool {
	return slices.Equal(r.pods, o.pods) && slices.Equal(r.servers, o.servers)
}

// queueing is the statement that leads a packet to the queue.
type queueing func() expr.Any

func byNFT() expr.Any { return &expr.Queue{Num: queueNumber, Total: 1, Flag: expr.QueueFlagBypass} }

// byXT is the same where the kernel has no queue of nftables, but that of iptables (nft_compat): a
// number, how many follow it, and to bypass it (linux/netfilter/xt_NFQUEUE.h).
func byXT() expr.Any {
	info := xt.Unknown(binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, queueNumber), 1), 1))
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}

// findQueueing finds out how the kernel leads packets to a queue.
func findQueueing() (queueing, error) {
	var errs []error
	for _, q := range []queueing{byNFT, byXT} {
		conn, err := nftables.New()
		if err != nil {
			return nil, fmt.Errorf("opening nftables: %w", err)
		}
		t := conn.AddTable(&nftables.Table{Name: TableName + "-try", Family: nftables.TableFamilyIPv4})
		c := conn.AddChain(&nftables.Chain{Name: "tried", Table: t})
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{q()}})
		conn.DelTable(t) // in one transaction: nothing is ever there
		if err = conn.Flush(); err == nil {
			return q, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("the kernel has no queue for packets (nft_queue: %w; nft_compat with xt_NFQUEUE: %w)", errs[0], errs[1])
}

// builder makes the rules of a table.
type builder struct {
	conn *nftables.Conn
	t    *nftables.Table
	size uint32 // of an address
	sets map[string]*nftables.Set
}

func tableOf(f table.Family) *nftables.Table {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyIPv4}
	if f.Six {
		t.Family = nftables.TableFamilyIPv6
	}
	return t
}

// remove removes the table of a family, if it is there. changed = it was.
func remove(conn *nftables.Conn, f table.Family) (changed bool, err error) {
	t := tableOf(f)
	if _, err := conn.ListTableOfFamily(TableName, t.Family); err != nil {
		return false, nil
	}
	conn.DelTable(t)
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("removing table %s %s: %w", f.NFT(), TableName, err)
	}
	return true, nil
}

// write makes the table of a family anew, in one transaction. Questions that are under way are not
// known then: their answers are read when they are asked again.
func (r rules) write(conn *nftables.Conn, f table.Family, q queueing) error {
	b := &builder{conn: conn, size: 4, sets: map[string]*nftables.Set{}}
	if f.Six {
		b.size = 16
	}
	conn.AddTable(tableOf(f)) // so that it may be deleted
	conn.DelTable(tableOf(f))
	b.t = conn.AddTable(tableOf(f))
	addr := nftables.TypeIPAddr
	if f.Six {
		addr = nftables.TypeIP6Addr
	}
	asked := nftables.MustConcatSetType(addr, addr, nftables.TypeInetService, nftables.TypeInetService)
	for _, s := range []*nftables.Set{
		{Name: "pods", KeyType: addr}, {Name: "servers", KeyType: addr},
		{Name: "asked", KeyType: asked, Concatenation: true, Dynamic: true, HasTimeout: true, Timeout: askedTime, Size: askedSize},
		{Name: "asking", KeyType: addr, Dynamic: true, HasTimeout: true, Timeout: time.Minute, Size: 1 << 14},
		{Name: "told", KeyType: addr, Dynamic: true, HasTimeout: true, Timeout: time.Minute, Size: 1 << 14},
		{Name: "beat", KeyType: nftables.TypeMark, Dynamic: true, HasTimeout: true, Timeout: beatTime, Size: 16, KeyByteOrder: binaryutil.NativeEndian},
	} {
		s.Table = b.t
		b.sets[s.Name] = s
		if err := conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("making set %s: %w", s.Name, err)
		}
	}
	for name, all := range r.sets() {
		if err := addTo(conn, b.sets[name], of(f, all)); err != nil {
			return err
		}
	}
	b.chains(q)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("writing table %s %s: %w", f.NFT(), TableName, err)
	}
	return nil
}

// sets are those that follow the state.
func (r rules) sets() map[string][]netip.Addr {
	return map[string][]netip.Addr{"pods": r.pods, "servers": r.servers}
}

func of(f table.Family, all []netip.Addr) []nftables.SetElement {
	var out []nftables.SetElement
	for _, a := range all {
		if f.Has(a) {
			out = append(out, nftables.SetElement{Key: a.AsSlice()})
		}
	}
	return out
}

// addTo adds elements to a set, so many in a message as it takes.
func addTo(conn *nftables.Conn, set *nftables.Set, all []nftables.SetElement) error {
	for len(all) > 0 {
		n := min(1000, len(all))
		if err := conn.SetAddElements(set, all[:n]); err != nil {
			return fmt.Errorf("adding to set %s: %w", set.Name, err)
		}
		all = all[n:]
	}
	return nil
}

// follow makes the sets of a table that is there what they should be. changed = they were not.
func (r rules) follow(conn *nftables.Conn, f table.Family) (changed bool, err error) {
	for name, all := range r.sets() {
		set, err := conn.GetSetByName(tableOf(f), name)
		if err != nil {
			return false, fmt.Errorf("reading set %s: %w", name, err)
		}
		there, err := conn.GetSetElements(set)
		if err != nil {
			return false, fmt.Errorf("reading set %s: %w", name, err)
		}
		known := map[string]bool{}
		for _, e := range there {
			known[string(e.Key)] = true
		}
		var more, gone []nftables.SetElement
		for _, e := range of(f, all) {
			if !known[string(e.Key)] {
				more = append(more, e)
			}
			delete(known, string(e.Key))
		}
		for key := range known {
			gone = append(gone, nftables.SetElement{Key: []byte(key)})
		}
		changed = changed || len(more)+len(gone) > 0
		if err := addTo(conn, set, more); err != nil {
			return false, err
		}
		for len(gone) > 0 {
			n := min(1000, len(gone))
			if err := conn.SetDeleteElements(set, gone[:n]); err != nil {
				return false, fmt.Errorf("taking out of set %s: %w", name, err)
			}
			gone = gone[n:]
		}
	}
	if !changed {
		return false, nil
	}
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("writing the sets of table %s %s: %w", f.NFT(), TableName, err)
	}
	return true, nil
}

// layout is the comment of the rules that chains makes; it changes with them.
const layout = "1"

func (b *builder) chain(name string) *nftables.Chain {
	return b.conn.AddChain(&nftables.Chain{Name: name, Table: b.t})
}

func (b *builder) base(name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
	return b.conn.AddChain(&nftables.Chain{Name: name, Table: b.t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: &priority})
}

func (b *builder) rule(c *nftables.Chain, parts ...[]expr.Any) {
	b.conn.AddRule(&nftables.Rule{Table: b.t, Chain: c, Exprs: slices.Concat(parts...), UserData: userdata.AppendString(nil, userdata.TypeComment, layout)})
}

// Registers of 4 bytes, from which on the parts of a key are.
const firstRegister = 8 // NFT_REG32_00

func one(e ...expr.Any) []expr.Any { return e }

func compare(register uint32, value []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value}
}

func (b *builder) in(set string, register uint32, not bool) expr.Any {
	return &expr.Lookup{SourceRegister: register, SetName: set, SetID: b.sets[set].ID, Invert: not}
}

func (b *builder) add(set string, register, operation uint32, exprs ...expr.Any) expr.Any {
	return &expr.Dynset{SrcRegKey: register, SetName: set, SetID: b.sets[set].ID, Operation: operation, Exprs: exprs}
}

func to(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

// protocol holds of packets of one transport.
func protocol(p byte) []expr.Any {
	return one(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, compare(1, []byte{p}))
}

// header loads an address of the IP header, by its place in that of either family.
func (b *builder) header(four, six uint32) func(register uint32) expr.Any {
	at := four
	if b.size > 4 {
		at = six
	}
	return func(register uint32) expr.Any {
		return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: b.size}
	}
}

// transport loads 16 bits behind the IP header.
func transport(at, register uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: 2}
}

// chains makes chains and rules. What passes them by is accepted. A question is looked at before its
// destination is translated, and an answer when all is translated back: so both have the pod's own
// address, and that of the server that it asked.
func (b *builder) chains(q queueing) {
	const beforeNAT, afterNAT = -120, 120
	coming := b.base("coming", nftables.ChainHookPrerouting, beforeNAT)
	leaving := b.base("leaving", nftables.ChainHookPostrouting, afterNAT)
	sent := b.base("sent", nftables.ChainHookOutput, afterNAT)
	asks, told, handed := b.chain("asks"), b.chain("answers"), b.chain("handed")
	for _, name := range []string{chainUntrusted, chainUnasked, chainUnread} {
		b.rule(b.chain(name), one(&expr.Counter{}, to(expr.VerdictAccept, "")))
	}
	const sport, dport, id = 0, 2, 8 // of UDP
	source, destination := b.header(12, 8), b.header(16, 24)
	udp, tcp, dns := protocol(unix.IPPROTO_UDP), protocol(unix.IPPROTO_TCP), compare(1, []byte{0, 53})
	isPod := func(addr func(uint32) expr.Any) []expr.Any { return one(addr(1), b.in("pods", 1, false)) }
	trusted := func(addr func(uint32) expr.Any, not bool) []expr.Any { return one(addr(1), b.in("servers", 1, not)) }
	inDirection := func(reply byte) []expr.Any {
		return one(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, compare(1, []byte{reply}))
	}
	words := b.size / 4
	question := func(pod, server func(uint32) expr.Any, port uint32) []expr.Any {
		return one(pod(firstRegister), server(firstRegister+words), transport(port, firstRegister+2*words), transport(id, firstRegister+2*words+1))
	}
	there := one(&expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, beatMark)}, b.in("beat", 1, false))
	overRate := func(set string, pod func(uint32) expr.Any) []expr.Any {
		return one(pod(1), b.add(set, 1, unix.NFT_DYNSET_OP_UPDATE,
			&expr.Limit{Type: expr.LimitTypePkts, Rate: eachRate, Unit: expr.LimitTimeSecond, Burst: eachBurst, Over: true}))
	}
	queue, pass := one(q()), one(to(expr.VerdictAccept, ""))

	// The agent says that it reads by what it sends itself: no element is written for that.
	b.rule(sent, one(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, compare(1, binary.NativeEndian.AppendUint32(nil, beatMark)),
		b.add("beat", 1, unix.NFT_DYNSET_OP_UPDATE), to(expr.VerdictDrop, "")))

	b.rule(coming, udp, one(transport(dport, 1), dns), isPod(source), one(to(expr.VerdictGoto, asks.Name)))
	b.rule(asks, trusted(destination, true), pass)
	b.rule(asks, inDirection(1), pass)
	b.rule(asks, overRate("asking", source), pass)
	b.rule(asks, question(source, destination, sport), one(b.add("asked", firstRegister, unix.NFT_DYNSET_OP_ADD)))

	b.rule(leaving, one(transport(sport, 1), dns), isPod(destination), inDirection(1), one(to(expr.VerdictGoto, told.Name)))
	b.rule(told, tcp, trusted(source, false), there, queue) // a connection is a question
	b.rule(told, tcp, pass)
	b.rule(told, trusted(source, true), one(to(expr.VerdictGoto, chainUntrusted)))
	b.rule(told, udp, question(destination, source, dport), one(b.in("asked", firstRegister, false), to(expr.VerdictGoto, handed.Name)))
	b.rule(told, one(to(expr.VerdictGoto, chainUnasked)))

	b.rule(handed, overRate("told", destination), one(to(expr.VerdictGoto, chainUnread)))
	b.rule(handed, there, queue)
	b.rule(handed, one(to(expr.VerdictGoto, chainUnread)))
}

// intact reports whether the table of a family is as it was written.
func intact(f table.Family) (bool, error) {
	number := uint8(unix.NFPROTO_IPV4)
	if f.Six {
		number = unix.NFPROTO_IPV6
	}
	found, err := table.CommentsIn(TableName, number)
	if err != nil {
		return false, err
	}
	got := map[string]int{}
	for chain, comments := range found {
		for _, c := range comments {
			if c != layout {
				return false, nil
			}
		}
		got[chain] = len(comments)
	}
	return maps.Equal(got, map[string]int{"coming": 1, "leaving": 1, "sent": 1, "asks": 4, "answers": 5, "handed": 3, chainUntrusted: 1, chainUnasked: 1, chainUnread: 1}), nil
}

// Remove removes the tables, if they are there.
func Remove() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	var errs []error
	for _, f := range table.Families {
		_, err := remove(conn, f)
		if !kernel.LacksNFTables(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
