// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// TranslatedZoneID is the zone of connections as the node's stack sees them where programs
// translate them.
const TranslatedZoneID = 8787

// arriveSet is one of the table's sets, by which it is distinguished from a Hold.
const arriveSet = "arrive4"

// zoneTime is how long the nft program is given in all: nothing waits for it but the change of
// the data plane, and there may be many connections.
const zoneTime = 30 * time.Second

// ErrFull says that the table of tracked connections has no room for more.
var ErrFull = errors.New("the table of tracked connections has no room for more")

// Marks are the packet marks by which programs and connection tracking show each other what they
// have translated.
type Marks struct {
	Mask uint32 // the bits of the others
	Seen uint32 // programs put it on what they translate and the stack sees; 0 = they do not, those of an older version
	Done uint32 // programs let pass what bears it
}

// TranslatedZone keeps connections that programs translate and the node's stack sees in a zone of
// connection tracking of their own, apart from the same ones as they are where connection tracking
// translates them: one of their tuples is the same, so they cannot be in one zone. While one data
// plane takes over from another each packet finds the one that it belongs to, whichever of the two
// translates it. What it leads are single connections by their tuples, in the table inet
// weir-switch. It needs the nft program.
//
// A translated packet may look like another connection's before its translation, where two have the
// same source port: what programs translated is recognized by its mark, and what connection
// tracking translates gets one by which programs let it pass.
type TranslatedZone struct {
	table *Table
	marks Marks
	led   map[Tuple]struct{} // by the tuple of the original direction
	rest  []Tuple            // of both directions, of those of which what the node sends is not led
	begun bool               // something may be in the zone
	made  bool               // the table is there
	spent time.Duration      // by the nft program
}

// NewTranslatedZone keeps nothing apart yet.
func NewTranslatedZone(t *Table, m Marks) *TranslatedZone {
	return &TranslatedZone{table: t.In(TranslatedZoneID), marks: m, led: map[Tuple]struct{}{}}
}

// Open makes the table, if it is not there. From then on programs may mark what they translate, and
// let what connection tracking translates pass; nothing is led yet. By it the next process finds
// what is in the zone, whenever this one is killed.
func (z *TranslatedZone) Open(ctx context.Context) error {
	if z.made {
		return nil
	}
	z.begun = true
	if err := z.nft(ctx, z.rules()); err != nil {
		return zoneError(err)
	}
	z.made = true
	return nil
}

// Leads reports whether what comes in of a connection, named by the tuple of its original
// direction, is led to the zone.
func (z *TranslatedZone) Leads(orig Tuple) bool {
	_, ok := z.led[orig]
	return ok
}

// Add keeps connections apart that were not yet: they are made in the zone, and what comes in and
// belongs to them is led there. What could not be led is tried again with the next call. The error
// is ErrFull when there was no room for all.
func (z *TranslatedZone) Add(ctx context.Context, all []Entry) error {
	room, err := Room()
	if err != nil {
		return zoneError(err)
	}
	var tuples []Tuple
	var some Some
	var full error
	fresh := make([]Tuple, 0, len(all))
	for _, e := range all {
		if z.Leads(e.Orig) {
			continue
		}
		if len(fresh) >= room {
			full = ErrFull
			break
		}
		if err := z.Open(ctx); err != nil {
			return err
		}
		if _, err := z.table.Put(e, func(Entry) bool { return false }); err != nil {
			some.Add(err)
			continue
		}
		fresh = append(fresh, e.Orig)
		tuples = append(tuples, e.Orig, e.Reply)
	}
	if len(tuples) > 0 {
		if err := z.nft(ctx, zoneElements("arrive", tuples)); err != nil {
			some.Add(err)
			fresh, tuples = nil, nil
		}
	}
	z.rest = append(z.rest, tuples...)
	for _, of := range fresh {
		z.led[of] = struct{}{}
	}
	return zoneError(errors.Join(full, some.Err()))
}

// nft runs the nft program for what is left of its time.
func (z *TranslatedZone) nft(ctx context.Context, text string) error {
	began := time.Now()
	defer func() { z.spent += time.Since(began) }()
	return kernel.NFT(ctx, text, zoneTime-z.spent)
}

// Sent leads what the node sends, too, of all that was added so far. Programs have to know the
// connections by then: they translate it.
func (z *TranslatedZone) Sent(ctx context.Context) error {
	if len(z.rest) == 0 {
		return nil
	}
	err := z.nft(ctx, sentChain+zoneElements("sent", z.rest))
	if err == nil {
		z.rest = nil
	}
	return zoneError(err)
}

// Unsent leads what the node sends no more, of all connections at once: connection tracking
// translates it.
func (z *TranslatedZone) Unsent() error {
	return zoneError(dropChains("sent"))
}

// Close leads nothing there any more, and forgets what is there. After an error it may be called
// again.
func (z *TranslatedZone) Close() error {
	if !z.begun {
		return nil
	}
	clear(z.led)
	z.rest, z.made, z.spent = nil, false, 0
	err := endTranslatedZone(z.table)
	z.begun = err != nil
	return zoneError(err)
}

// endTranslatedZone takes away what leads packets to the zone, forgets what is there once none is
// on its way to it any more, and takes the table away last: as long as it is there, the zone may
// not be empty, and the next process looks.
func endTranslatedZone(t *Table) error {
	if err := dropChains(); err != nil {
		if err2 := dropTable(); err2 != nil { // with all that leads
			return errors.Join(err, err2)
		}
	}
	AwaitPackets()
	if err := t.forgetZone(TranslatedZoneID); err != nil {
		return err
	}
	return dropTable()
}

// forgetZone forgets every connection of a zone.
func (t *Table) forgetZone(zone uint16) error {
	var of []Tuple
	var some Some
	for _, six := range []bool{false, true} {
		some.Add(t.Each(six, func(e Entry) {
			if e.Zone == zone {
				of = append(of, e.Orig)
			}
		}))
	}
	in := t.In(zone)
	for _, o := range of {
		some.Add(in.Delete(o))
	}
	return some.Err()
}

// AwaitPackets waits until every packet that was inside of a program or a hook of this kernel has
// passed it: for a grace period of RCU (membarrier(2), MEMBARRIER_CMD_GLOBAL), some ten
// milliseconds. To look at a clock would not do: a processor may pause for longer. It does
// not wait for packets between two of them: those in a queue (of NFQUEUE, of a device, of a
// processor), and what a process is about to send (udp_sendmsg as a whole is no reader of RCU).
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, err := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
	if err != 0 || oneProcessor() { // a kernel without it, or with nohz_full; with one processor the kernel does nothing
		time.Sleep(50 * time.Millisecond)
	}
}

// oneProcessor reports whether it may be that a single processor is online. This process may be
// bound to one of several.
func oneProcessor() bool {
	var set unix.CPUSet
	err := unix.SchedGetaffinity(0, &set)
	return err != nil || set.Count() <= 1
}

func zoneError(err error) error {
	if err != nil {
		err = fmt.Errorf("keeping apart connections that both data planes translate: %w", err)
	}
	return err
}

// rules make the table, in the words of nft: it leads nothing yet. The chains come before those of
// data planes at their hooks, and before the zone is looked at, or after the translation of
// sources. What goes to the loopback device meets no program.
func (z *TranslatedZone) rules() string {
	text := `
add table inet $table
add set inet $table arrive4 $four
add set inet $table arrive6 $six
add chain inet $table arrive { type filter hook prerouting priority -310; policy accept; }
add chain inet $table leave { type filter hook postrouting priority 110; policy accept; }
flush chain inet $table arrive
flush chain inet $table leave
add rule inet $table leave oifname != "lo" ct zone 0 ct status snat,dnat meta mark set meta mark & $rest | $done
`
	if z.marks.Seen != 0 {
		text += `
add rule inet $table arrive meta mark & $mask != $seen accept
add rule inet $table arrive meta mark set meta mark & $rest
`
	}
	return zoneText(text+zoneRules("arrive"), z.marks)
}

// sentChain makes the chain that leads what the node sends.
var sentChain = zoneText(`
add set inet $table sent4 $four
add set inet $table sent6 $six
add chain inet $table sent { type filter hook output priority -300; policy accept; }
flush chain inet $table sent
`+zoneRules("sent"), Marks{})

// zoneRules are the rules of a chain that lead.
func zoneRules(chain string) string {
	return strings.ReplaceAll(`
add rule inet $table $chain ip saddr . ip daddr . meta l4proto . th sport . th dport @$chain4 ct zone set $zone
add rule inet $table $chain ip6 saddr . ip6 daddr . meta l4proto . th sport . th dport @$chain6 ct zone set $zone
`, "$chain", chain)
}

// zoneText puts in what the rules are about.
func zoneText(text string, m Marks) string {
	hex := func(v uint32) string { return fmt.Sprintf("%#08x", v) }
	return strings.NewReplacer("$table", holdTable, "$zone", fmt.Sprint(TranslatedZoneID),
		"$four", "{ type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service; }",
		"$six", "{ type ipv6_addr . ipv6_addr . inet_proto . inet_service . inet_service; }",
		"$mask", hex(m.Mask), "$rest", hex(^m.Mask), "$seen", hex(m.Seen), "$done", hex(m.Done)).Replace(text)
}

// zoneElements lead tuples by a chain: those that it leads already, too.
func zoneElements(chain string, tuples []Tuple) string {
	var four, six []string
	for _, t := range tuples {
		if !t.Ported() {
			continue
		}
		text := fmt.Sprintf("%s . %s . %d . %d . %d", t.Src, t.Dst, t.Proto, t.SrcPort, t.DstPort)
		if t.Src.Is4() {
			four = append(four, text)
		} else {
			six = append(six, text)
		}
	}
	var out strings.Builder
	for version, elements := range map[int][]string{4: four, 6: six} {
		if len(elements) > 0 {
			fmt.Fprintf(&out, "add element inet %s %s%d { %s }\n", holdTable, chain, version, strings.Join(elements, ", "))
		}
	}
	return out.String()
}
