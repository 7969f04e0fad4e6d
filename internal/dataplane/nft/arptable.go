package nft

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
)

// arpTable is our table of the family arp. The kernel enters whoever asks it by ARP as a neighbour, so a pod asks a few times a second: a pod has
// the one neighbour that it needs from the start.
type arpTable struct {
	nft     knftables.Interface
	known   bool
	pods    string // the interfaces that it is about
	there   bool   // the kernel has it
	commits uint32 // transactions
}

const arpChain = "received"

// lost says what somebody else took away of the table, which the next apply makes again.
func (a *arpTable) lost() error {
	if !a.there {
		return nil
	}
	err := lostRule(unix.NFPROTO_ARP, "arp "+tableName, arpChain)
	if err != nil {
		a.known = false
	}
	return err
}

// apply makes the table. A kernel without such tables goes without.
func (a *arpTable) apply(ctx context.Context, s *nodestate.State, log *slog.Logger) {
	pods := podInterfaces(s)
	if a.known && a.pods == pods {
		return
	}
	a.known, a.pods = true, pods
	tx := a.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if pods != "" {
		tx.Add(&knftables.Table{})
		tx.Add(Set{Key: "ifname", Learned: true, Size: resolvingSize}.object(setDiscovers))
		tx.Add(Chain{Type: knftables.FilterType, Hook: knftables.InputHook, Priority: "0"}.object(arpChain))
		tx.Add(&knftables.Rule{Chain: arpChain, Rule: fmt.Sprintf(
			"iifname %s update @%s { iifname timeout 1m limit rate over %d/second burst %d packets } counter drop", pods, setDiscovers, discoverPod, discoverPod)})
	}
	if err := a.nft.Run(ctx, tx); err != nil {
		a.there = false
		log.Warn("pods may enter any number of neighbours by ARP: the kernel takes no table of the family arp", "error", err)
		return
	}
	a.there = pods != ""
	a.commits++
}
