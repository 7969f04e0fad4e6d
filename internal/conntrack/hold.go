// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// holdTable is the table of nftables that a Hold is.
const holdTable = "weir-switch"

// HoldTime is how long a Hold holds when nobody ends it.
const HoldTime = 5 * time.Second

// nftTime is how long the nft program is given while packets are held back.
const nftTime = 3 * time.Second

// HoldOptions say what is held back.
type HoldOptions struct {
	// InterfacePrefix begins the names of pods' interfaces.
	InterfacePrefix string
	// TunnelPort is that of the tunnel (UDP), whose packets are answered from other ports: they
	// always begin something. 0 = there is none.
	TunnelPort uint16
}

// Hold drops packets of pods, Services and the node's processes that belong to no tracked
// connection, and what these processes send to pods and answer as a Service, for a moment: while
// one data plane takes over from another, a connection that the next one does not know yet would be
// answered by a reset, or be given another port. So would be an open connection of a process to a
// Service, while connection tracking has forgotten it and a kube-proxy's rules are still there:
// they would translate its next packet anew. What is dropped is sent again. It ends by itself
// after five seconds, whatever becomes of the caller; to call it again begins anew. It needs the
// nft program. release is to be called after an error, too: it takes away whatever is there.
func Hold(ctx context.Context, o HoldOptions) (release func() error, err error) {
	if err = kernel.NFT(ctx, o.rules(), nftTime); err != nil {
		err = fmt.Errorf("holding packets back while the data plane changes: %w", err)
	}
	return Release, err
}

// Release ends a Hold, or what a TranslatedZone leads, if there is one, takes its table away, and
// forgets what a TranslatedZone had, also that of a process that was killed. It does not need the
// nft program.
func Release() error { return released(release(false)) }

// ReleaseHold ends a Hold, and leaves alone what a TranslatedZone leads: who goes on with the
// change of the data plane goes on with that.
func ReleaseHold() error { return released(release(true)) }

func released(err error) error {
	if err != nil {
		return fmt.Errorf("letting packets go on again, which are held back for %v at most: %w", HoldTime, err)
	}
	return nil
}

func release(holdOnly bool) error {
	conn, found, err := switchTable()
	if err != nil || found == nil {
		return err
	}
	sets, err := conn.GetSets(found)
	known := err == nil || errors.Is(err, unix.ENOENT) // else it may be either
	if known && !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == arriveSet }) {
		return dropTable()
	}
	if holdOnly {
		return nil
	}
	t, err := Open()
	if err != nil {
		return errors.Join(err, dropTable())
	}
	defer t.Close()
	return endTranslatedZone(t)
}

// switchTable finds the table of a Hold or a TranslatedZone; it is nil where it is not there.
func switchTable() (*nftables.Conn, *nftables.Table, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, nil, fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if kernel.LacksNFTables(err) {
		return conn, nil, nil // no nftables in this kernel
	}
	if err != nil {
		return nil, nil, fmt.Errorf("listing tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == holdTable {
			return conn, t, nil
		}
	}
	return conn, nil, nil
}

// dropTable deletes the table, if it is there.
func dropTable() error {
	conn, found, err := switchTable()
	if err != nil || found == nil {
		return err
	}
	conn.DelTable(found)
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("deleting the table inet %s: %w", holdTable, err)
	}
	return nil
}

// dropChains deletes some of the table's chains, or all where none is named, if it is there.
func dropChains(only ...string) error {
	conn, found, err := switchTable()
	if err != nil || found == nil {
		return err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("listing chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Name == holdTable && (len(only) == 0 || slices.Contains(only, c.Name)) {
			conn.FlushChain(c)
			conn.DelChain(c)
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("deleting the chains of the table inet %s: %w", holdTable, err)
	}
	return nil
}

// rules are the Hold in the words of nft. Chains come before those of data planes (filter), and
// after the translation of destinations.
func (o HoldOptions) rules() string {
	tunnel := ""
	if o.TunnelPort > 0 {
		tunnel = fmt.Sprintf("udp dport %d accept", o.TunnelPort)
	}
	return strings.NewReplacer("$table", holdTable, "$time", fmt.Sprintf("%ds", int(HoldTime.Seconds())), "$pods", `"`+o.InterfacePrefix+`*"`,
		"$tunnel", tunnel).Replace(`
table inet $table
delete table inet $table
table inet $table {
	set held { typeof meta nfproto; flags timeout; elements = { ipv4 timeout $time, ipv6 timeout $time } }
	chain forward {
		type filter hook forward priority -20; policy accept;
		meta nfproto != @held accept
		ct state new,invalid jump unknown
	}
	chain unknown {
		iifname $pods drop
		oifname $pods drop
		ct status dnat drop
	}
	chain input {
		type filter hook input priority -20; policy accept;
		meta nfproto != @held accept
		ct state established,related accept
		iifname "lo" accept
		ct status dnat drop
		tcp flags & (fin | syn | rst | ack) == syn accept
		$tunnel
		meta l4proto { tcp, udp, sctp } drop
	}
	chain output {
		type filter hook output priority -20; policy accept;
		meta nfproto != @held accept
		ct status dnat ct direction reply drop
		ct status dnat ct state new tcp flags & (fin | syn | rst | ack) != syn drop
		oifname $pods meta l4proto { tcp, sctp } drop
	}
}
`)
}
