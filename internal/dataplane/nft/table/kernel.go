// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/kernel"
)

// DeleteTables empties the base chains and deletes the tables once no packet is inside of them. A
// packet that is inside of a chain while a transaction takes effect goes on by the rules of before,
// and finds the elements of after: with the table's maps gone, and their elements, it would be
// dropped where a rule asks who sent it.
func DeleteTables() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if kernel.LacksNFTables(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing tables: %w", err)
	}
	tables = slices.DeleteFunc(tables, func(t *nftables.Table) bool {
		return t.Name != Name || t.Family != nftables.TableFamilyIPv4 && t.Family != nftables.TableFamilyIPv6 && t.Family != nftables.TableFamilyNetdev && t.Family != nftables.TableFamilyINet && t.Family != nftables.TableFamilyARP
	})
	if len(tables) == 0 {
		return nil
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("listing chains: %w", err)
	}
	for _, c := range chains {
		// Without its layout a table that stays, emptied, counts as none.
		if (c.Hooknum != nil || c.Name == layoutChain) && slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == c.Table.Name && t.Family == c.Table.Family }) {
			conn.FlushChain(c)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("emptying chains: %w", err)
	}
	conntrack.AwaitPackets()
	for _, t := range tables {
		conn.DelTable(t)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("deleting tables: %w", err)
	}
	return nil
}

// There reports whether a driver's table of a family is in the kernel.
func There() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if kernel.LacksNFTables(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool {
		return t.Name == Name && (t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6)
	}), nil
}

// Counter reads the first counter among a chain's rules.
func Counter(f Family, chain string) (n [2]uint64, _ error) { return CounterIn(Name, f, chain) }

// CounterIn is Counter of another table of ours.
func CounterIn(table string, f Family, chain string) (n [2]uint64, _ error) {
	// linux/netfilter/nf_tables.h
	const (
		getRule                               = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE
		ruleTable, ruleChain, ruleExpressions = 1, 2, 4
		expressionName, expressionData        = 1, 2
		counterBytes, counterPackets          = 1, 2
	)
	req := nl.NewNetlinkRequest(getRule, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: f.netfilter()})
	req.AddData(nl.NewRtAttr(ruleTable, nl.ZeroTerminated(table)))
	req.AddData(nl.NewRtAttr(ruleChain, nl.ZeroTerminated(chain)))
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return n, nil
	}
	if err != nil {
		return n, fmt.Errorf("reading the counter of chain %s: %w", chain, err)
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		for _, e := range attr(m[nl.SizeofNfgenmsg:], ruleExpressions) {
			for _, one := range attrs(e) {
				name, data := attr(one, expressionName), attr(one, expressionData)
				if len(name) == 0 || len(data) == 0 || nl.BytesToString(name[0]) != "counter" {
					continue
				}
				for i, kind := range []uint16{counterPackets, counterBytes} {
					if v := attr(data[0], kind); len(v) > 0 && len(v[0]) == 8 {
						n[i] = binary.BigEndian.Uint64(v[0])
					}
				}
				return n, nil
			}
		}
	}
	return n, nil
}

// attrs are the values of netlink attributes, of whatever kind.
func attrs(b []byte) (out [][]byte) {
	all, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range all {
		out = append(out, a.Value)
	}
	return out
}

// attr are the values of the attributes of one kind.
func attr(b []byte, kind uint16) (out [][]byte) {
	all, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range all {
		if a.Attr.Type&0x3fff == kind {
			out = append(out, a.Value)
		}
	}
	return out
}

// Elements are a set of a family's table and what is in it; the set is nil where it is not there.
func Elements(conn *nftables.Conn, f Family, set string) (*nftables.Set, []nftables.SetElement, error) {
	t := &nftables.Table{Name: Name, Family: nftables.TableFamilyIPv4}
	if f.Six {
		t.Family = nftables.TableFamilyIPv6
	}
	s, err := conn.GetSetByName(t, set)
	if err == nil {
		var found []nftables.SetElement
		if found, err = conn.GetSetElements(s); err == nil {
			return s, found, nil
		}
	}
	if errors.Is(err, unix.ENOENT) || kernel.LacksNFTables(err) {
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("reading the set %s of table %s %s: %w", set, f.NFT(), Name, err)
}

// Intact says what of the table's chains and rules is not as it was written.
func (w *State) Intact() error {
	found, err := Comments(w.Family.netfilter())
	if err != nil {
		return err
	}
	for name, want := range w.hashes {
		if !slices.Equal(found[name], want) {
			return fmt.Errorf("chain %s has other rules", name)
		}
	}
	return nil
}

// Comments are those of the rules of our table of a family (NFPROTO_…), by chain, in order; a rule
// without one has an empty one. What rules do is not looked at: a library that reads it as well
// fails at expressions that it does not know.
func Comments(of uint8) (map[string][]string, error) { return CommentsIn(Name, of) }

// CommentsIn is Comments of another table of ours.
func CommentsIn(name string, of uint8) (map[string][]string, error) {
	// linux/netfilter/nf_tables.h
	const getRule, ruleTable, ruleChain, ruleUserData = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, 1, 2, 7
	msgs, err := kernel.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(getRule, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: of})
		req.AddData(nl.NewRtAttr(ruleTable, nl.ZeroTerminated(name)))
		return req.Execute(unix.NETLINK_NETFILTER, 0)
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("listing rules: %w", err)
	}
	out := map[string][]string{}
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("reading a rule: %w", err)
		}
		var table, chain, comment string
		for _, a := range attrs {
			switch a.Attr.Type {
			case ruleTable:
				table = nl.BytesToString(a.Value)
			case ruleChain:
				chain = nl.BytesToString(a.Value)
			case ruleUserData:
				comment, _ = userdata.GetString(a.Value, userdata.TypeComment)
			}
		}
		if table == name {
			out[chain] = append(out[chain], comment)
		}
	}
	return out, nil
}

// Generation is the number of changes of the network namespace's nftables (NFT_MSG_GETGEN).
func Generation() (uint32, error) {
	const getGen, genID = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, 1
	req := nl.NewNetlinkRequest(getGen, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == genID && len(a.Value) == 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel reported no generation")
}
