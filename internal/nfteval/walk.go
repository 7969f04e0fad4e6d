// SPDX-License-Identifier: Apache-2.0

package nfteval

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Hooks of IP (enum nf_inet_hooks).
type Hook uint32

const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

// Verdicts of linux/netfilter.h and nf_tables.h.
const (
	drop    = 0
	accept  = 1
	goOn    = -1 // NFT_CONTINUE
	missed  = -2 // NFT_BREAK: the rule does not match
	jump    = -3
	goTo    = -4
	goBack  = -5 // NFT_RETURN
	deepest = 16 // NFT_JUMP_STACK_SIZE
)

// Device is an interface as rules see it.
type Device struct {
	Index int
	Name  string
	Type  uint16 // ARPHRD_
}

// Lookup is a question to a set of the table.
type Lookup struct {
	Set    string
	Key    []byte
	Found  bool
	Value  []byte // of a map
	Leads  string // of a map of verdicts: what it says, in nft's words
	Inside string // the chain that asked
}

// Packet is a packet as it passes. Hook changes what rules change.
type Packet struct {
	Link     []byte // Ethernet header, nil = none yet
	IP       []byte // from the IP header on
	Proto    uint8  // of what follows the IP header and its extensions
	L4       int    // where that begins, in IP
	In, Out  Device // Index 0 = none
	Mark     uint32
	Routed   uint32 // the mark that it was routed by
	Priority uint32
	Flow     Flow
	// Ends are the packet's own, which translation changes; IP keeps what it was made of and is
	// written with them.
	Ends Tuple
}

// Ended is what became of a packet at a hook.
type Ended struct {
	Dropped bool
	Refused bool   // and the sender gets an answer
	Chain   string // that dropped
}

// Walk is a packet's path through the rules of a table.
type Walk struct {
	Packet
	Table *Table
	// Pick chooses a number below n where rules choose at random.
	Pick func(n uint32) uint32
	// AddrType is the kernel's type of an address (RTN_LOCAL, …).
	AddrType func(netip.Addr) (uint32, error)
	// LeadsBack reports whether the route to an address leads out by an interface.
	LeadsBack func(to netip.Addr, ifindex int) (bool, error)
	// NextHop is the gateway of the route to an address, or the address where it is on the link.
	NextHop func(to netip.Addr) (netip.Addr, error)
	// Lookups are those in sets with a name, in their order; Rules how many rules were looked at,
	// Chains those of them that were entered.
	Lookups []Lookup
	Rules   int
	Chains  []string
	// Choices are the numbers among which rules chose at random.
	Choices []uint32

	refused    bool
	translated bool // by a rule of the chain at hand
	last       string
}

// Hook lets the packet pass the base chains of a hook in their order.
func (w *Walk) Hook(at Hook) (Ended, error) {
	var chains []*chain
	for _, c := range w.Table.chains {
		if c.base && Hook(c.hook) == at {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b *chain) int { return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.name, b.name)) })
	natDone := false
	for _, c := range chains {
		if c.typ == "nat" {
			if natDone {
				continue
			}
			if w.Flow.Known {
				w.translateKnown(at)
				natDone = true
				continue
			}
			w.translated = false
		}
		v, err := w.enter(c, 0)
		if err != nil {
			return Ended{}, fmt.Errorf("chain %s: %w", c.name, err)
		}
		natDone = natDone || c.typ == "nat" && w.translated
		if v.code == goOn {
			v.code = int32(c.policy)
			w.last = c.name
		}
		if v.code != accept {
			return Ended{Dropped: true, Refused: w.refused, Chain: w.last}, nil
		}
		if c.typ == "route" {
			w.Routed = w.Mark
		}
	}
	if at == Prerouting {
		w.Routed = w.Mark
	}
	return Ended{}, nil
}

// translateKnown translates a packet of a flow that connection tracking knew before.
func (w *Walk) translateKnown(at Hook) {
	to := w.Flow.Reply
	if w.Flow.IsReply {
		to = w.Flow.Original
	}
	if at == Prerouting || at == Output {
		w.rewrite(w.Ends.Src, w.Ends.SrcPort, to.Src, to.SrcPort)
	} else {
		w.rewrite(to.Dst, to.DstPort, w.Ends.Dst, w.Ends.DstPort)
	}
}

// rewrite gives the packet other ends. Of ICMP only addresses change.
func (w *Walk) rewrite(src netip.Addr, sport uint16, dst netip.Addr, dport uint16) {
	at := 12
	if src.Is6() {
		at = 8
	}
	n := len(src.AsSlice())
	copy(w.IP[at:], src.AsSlice())
	copy(w.IP[at+n:], dst.AsSlice())
	w.Ends.Src, w.Ends.Dst = src, dst
	if w.hasPorts() && len(w.IP) >= w.L4+4 {
		binary.BigEndian.PutUint16(w.IP[w.L4:], sport)
		binary.BigEndian.PutUint16(w.IP[w.L4+2:], dport)
		w.Ends.SrcPort, w.Ends.DstPort = sport, dport
	}
}

func (w *Walk) hasPorts() bool { return w.Proto == 6 || w.Proto == 17 || w.Proto == 132 }

// enter lets the packet pass a chain; goOn: it came to the end, or back.
func (w *Walk) enter(c *chain, depth int) (verdict, error) {
	if c == nil || depth > deepest {
		return verdict{}, fmt.Errorf("a rule leads to a chain that is not there, or too deep")
	}
	w.Chains = append(w.Chains, c.name)
	for i := range c.rules {
		w.Rules++
		v, err := w.rule(c, &c.rules[i])
		if err != nil {
			return v, fmt.Errorf("rule %d: %w", i+1, err)
		}
		switch v.code {
		case goOn, missed:
			continue
		case goBack:
			return verdict{code: goOn}, nil
		case jump, goTo:
			next, err := w.enter(w.Table.chains[v.chain], depth+1)
			if err != nil {
				return next, fmt.Errorf("chain %s: %w", v.chain, err)
			}
			if next.code != goOn || v.code == goTo {
				return next, nil
			}
		default:
			w.last = c.name
			return v, nil
		}
	}
	return verdict{code: goOn}, nil
}

// rule does what the expressions of a rule say.
func (w *Walk) rule(c *chain, r *rule) (verdict, error) {
	var regs registers
	for i := range r.exprs {
		e := &r.exprs[i]
		do, ok := expressions[e.name]
		if !ok {
			return verdict{}, fmt.Errorf("an expression %q is not known", e.name)
		}
		v, err := do(w, c, e, &regs)
		if err != nil {
			return v, fmt.Errorf("%s: %w", e.name, err)
		}
		if v.code != goOn {
			return v, nil
		}
	}
	return verdict{code: goOn}, nil
}
