package nft

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane"
)

const fromTunnelChain = "from-tunnel"

// tunnelTable is our table of the family netdev. What comes out of the tunnel bears whatever Ethernet addresses the other
// node's packet had: each frame is for this node, or the stack would leave those to other addresses alone.
type tunnelTable struct {
	nft          knftables.Interface
	known, there bool
	commits      uint32 // transactions
}

// lost says what somebody else took away of the table, which the next apply makes again.
func (t *tunnelTable) lost() error {
	if !t.known || !t.there {
		return nil
	}
	err := lostRule(unix.NFPROTO_NETDEV, "netdev "+tableName, fromTunnelChain)
	t.known = err == nil
	return err
}

// apply makes the table, or with tunnel false removes it; again says that what was written may be gone.
func (t *tunnelTable) apply(ctx context.Context, tunnel, again bool) []error {
	if t.known && t.there == tunnel && !again {
		return nil
	}
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if tunnel {
		chain := Chain{Type: knftables.FilterType, Hook: knftables.IngressHook, Priority: "filter", Device: tunnelDevice}
		tx.Add(&knftables.Table{})
		tx.Add(chain.object(fromTunnelChain))
		tx.Add(&knftables.Rule{Chain: fromTunnelChain, Rule: "meta pkttype set host"})
	}
	if err := t.nft.Run(ctx, tx); err != nil {
		return []error{&dataplane.KeyError{Table: "devices", Key: tunnelDevice, Err: fmt.Errorf("writing table netdev %s: %w", tableName, err)}}
	}
	t.known, t.there = true, tunnel
	t.commits++
	return nil
}
