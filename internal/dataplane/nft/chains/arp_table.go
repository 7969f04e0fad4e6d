// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// ArpTable is our table of the family arp. The kernel enters whoever asks it by ARP as a neighbour,
// so a pod asks a few times a second: a pod has the one neighbour that it needs from the start.
type ArpTable struct {
	table.RuleTable
	pods string // the interfaces that it is about
}

// NewARPTable is the table, of which nothing is known yet.
func NewARPTable(n knftables.Interface) *ArpTable {
	return &ArpTable{RuleTable: table.NewRuleTable(n, "arp "+table.Name, unix.NFPROTO_ARP, "received")}
}

// Apply makes the table. A kernel without such tables goes without.
func (a *ArpTable) Apply(ctx context.Context, s *nodestate.State, log *slog.Logger) {
	pods := expr.PodInterfaces(s)
	if a.Known && a.pods == pods {
		return
	}
	a.Known, a.pods = true, pods
	chain := table.Chain{Type: knftables.FilterType, Hook: knftables.InputHook, Priority: "0"}
	if pods != "" {
		chain.Rules = []string{fmt.Sprintf(
			"iifname %s update @%s { iifname timeout 1m limit rate over %d/second burst %d packets } counter drop", pods, setDiscovers, discoverPod, discoverPod)}
	}
	if err := a.Write(ctx, chain, table.Set{Key: "ifname", Learned: true, Size: resolvingSize}.Object(setDiscovers)); err != nil {
		log.Warn("pods may enter any number of neighbours by ARP: the kernel takes no table of the family arp", "error", err)
	}
}
