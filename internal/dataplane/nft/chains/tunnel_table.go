// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"context"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// TunnelTable is our table of the family netdev. What comes out of the tunnel bears whatever
// Ethernet addresses the other node's packet had: each frame is for this node, or the stack would
// leave those to other addresses alone.
type TunnelTable struct{ table.RuleTable }

// NewTunnelTable is the table, of which nothing is known yet.
func NewTunnelTable(n knftables.Interface) *TunnelTable {
	return &TunnelTable{table.NewRuleTable(n, "netdev "+table.Name, unix.NFPROTO_NETDEV, "from-tunnel")}
}

// Apply makes the table, or with tunnel false removes it; again says that what was written may be
// gone.
func (t *TunnelTable) Apply(ctx context.Context, tunnel, again bool) []error {
	if t.Known && t.There == tunnel && !again {
		return nil
	}
	chain := table.Chain{Type: knftables.FilterType, Hook: knftables.IngressHook, Priority: "filter", Device: hostnet.TunnelDevice}
	if tunnel {
		chain.Rules = []string{"meta pkttype set host"}
	}
	if err := t.Write(ctx, chain); err != nil {
		return []error{&dataplane.KeyError{Table: "devices", Key: hostnet.TunnelDevice, Err: err}}
	}
	t.Known = true
	return nil
}
