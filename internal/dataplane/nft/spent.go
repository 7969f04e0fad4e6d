package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/reason"
)

const (
	// setSpent are the pods' addresses that had used up their share of the ports for source NAT, with what was dropped therefore.
	setSpent  = "spent"
	spentSize = 1024
	// spentKept is for how long one is kept that begins nothing more there.
	spentKept = time.Hour
	// spentRecent is for how long a pod counts as one that goes on.
	spentRecent = time.Minute
)

// Spent is a pod that had used up its ports for source NAT towards a destination.
type Spent struct {
	Addr    netip.Addr
	Refused uint64 // packets that were dropped
	Recent  bool   // it goes on
}

// noteSpent are the rules that drop what goes beyond a pod's share, and note whose it was while there is room.
func noteSpent() []string {
	refuse := denyName(reason.NoPort, 0)
	return []string{fmt.Sprintf("update @%s { $ip saddr timeout %ds counter } goto %s", setSpent, int(spentKept.Seconds()), refuse), "goto " + refuse}
}

// Spent reads which pods used up their ports, by their addresses.
func (d *Driver) Spent() ([]Spent, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	var out []Spent
	var errs []error
	for _, f := range families {
		_, found, err := elements(conn, f, setSpent)
		errs = append(errs, err)
		for _, e := range found {
			if a, ok := netip.AddrFromSlice(e.Key); ok && e.Counter != nil {
				out = append(out, Spent{Addr: a, Refused: e.Counter.Packets, Recent: spentKept-e.Expires < spentRecent})
			}
		}
	}
	slices.SortFunc(out, func(a, b Spent) int { return a.Addr.Compare(b.Addr) })
	return out, errors.Join(errs...)
}
