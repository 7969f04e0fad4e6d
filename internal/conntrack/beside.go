package conntrack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// BesideZone is the zone of connections as the node's stack sees them where programs translate them.
const BesideZone = 8787

// besideTime is how long the nft program is given: nothing waits for it but the change of the data plane, and there may be many connections.
const besideTime = 30 * time.Second

// Beside keeps connections that programs translate and the node's stack sees apart from the same ones as they are where connection tracking
// translates them: one of their tuples is the same, so they cannot stand in one zone. While one data plane takes over from another each
// packet finds the one that it belongs to, whichever of the two translates it. What it leads are single connections by their tuples, in
// the table inet weir-switch. It needs the nft program.
type Beside struct {
	table *Table
	known map[Tuple]struct{} // by the tuple of the original direction
}

// NewBeside keeps nothing apart yet.
func NewBeside(t *Table) *Beside {
	return &Beside{table: t.In(BesideZone), known: map[Tuple]struct{}{}}
}

// Add keeps connections apart that were not yet: they are made in the zone, and what comes in and belongs to them is led there.
func (b *Beside) Add(ctx context.Context, all []Entry) error {
	var tuples []Tuple
	var errs []error
	for _, e := range all {
		if _, ok := b.known[e.Orig]; ok {
			continue
		}
		if _, err := b.table.Put(e, func(Entry) bool { return false }); err != nil {
			errs = append(errs, err)
			continue
		}
		b.known[e.Orig] = struct{}{}
		tuples = append(tuples, e.Orig, e.Reply)
	}
	if len(tuples) > 0 {
		errs = append(errs, nft(ctx, besideRules(tuples), besideTime))
	}
	return besideError(errors.Join(errs...))
}

// Sent leads what the node sends, too.
func (b *Beside) Sent(ctx context.Context) error {
	if len(b.known) == 0 {
		return nil
	}
	return besideError(nft(ctx, besideChain("sent", "output"), besideTime))
}

// besideChain leads packets by the sets of tuples.
func besideChain(name, hook string) string {
	return strings.NewReplacer("$table", holdTable, "$name", name, "$hook", hook, "$rules", strings.Join(besideLead, "\n\t\t")).Replace(`
add table inet $table
add chain inet $table $name { type filter hook $hook priority -300; policy accept; }
flush chain inet $table $name
table inet $table {
	chain $name {
		$rules
	}
}
`)
}

// Close leads nothing there any more, and forgets what is there.
func (b *Beside) Close() error {
	if len(b.known) == 0 {
		return nil
	}
	errs := []error{Release()}
	for of := range b.known {
		errs = append(errs, b.table.Delete(of))
	}
	clear(b.known)
	return besideError(errors.Join(errs...))
}

func besideError(err error) error {
	if err != nil {
		err = fmt.Errorf("keeping apart connections that both data planes translate: %w", err)
	}
	return err
}

// besideLead are the rules of a chain.
var besideLead = []string{
	fmt.Sprintf("ip saddr . ip daddr . meta l4proto . th sport . th dport @four ct zone set %d", BesideZone),
	fmt.Sprintf("ip6 saddr . ip6 daddr . meta l4proto . th sport . th dport @six ct zone set %d", BesideZone),
}

// besideRules add tuples in the words of nft.
func besideRules(tuples []Tuple) string {
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
	out.WriteString(strings.ReplaceAll(`
add table inet $table
add set inet $table four { type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service; }
add set inet $table six { type ipv6_addr . ipv6_addr . inet_proto . inet_service . inet_service; }
`, "$table", holdTable))
	out.WriteString(besideChain("arrive", "prerouting"))
	for name, elements := range map[string][]string{"four": four, "six": six} {
		if len(elements) > 0 {
			fmt.Fprintf(&out, "add element inet %s %s { %s }\n", holdTable, name, strings.Join(elements, ", "))
		}
	}
	return out.String()
}
