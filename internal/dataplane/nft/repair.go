package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

const (
	// checkEvery bounds how long a table that somebody deleted or flushed goes unnoticed.
	checkEvery = 300 * time.Millisecond
	// lookEvery bounds how long elements that somebody deleted, devices and routes do: to look at all of them costs more.
	lookEvery = 10 * time.Second
)

// Run keeps the kernel as the last state wants it until ctx ends. Each transaction of nftables by anybody raises the ruleset's
// generation by one: that number, less what we wrote, says whether there is anything to look at.
func (d *Driver) Run(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	if d.live {
		var counting sync.WaitGroup
		defer counting.Wait()
		counting.Go(func() { d.shareConnections(ctx) })
	}
	looked, seen, written := time.Now(), uint32(0), uint32(0)
	stale := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, commits, err := d.generation()
		if err != nil {
			d.log.Error("asking for the generation of nftables", "error", err)
			continue
		}
		changed := now != seen+commits-written // by somebody else
		seen, written = now, commits
		stale = stale || changed
		full := time.Since(looked) > lookEvery
		if full {
			looked = time.Now()
		}
		if changed || full {
			d.check(ctx, full, full && stale)
		}
		if full {
			stale = false
		}
	}
}

// check compares the kernel's rules with ours and repairs them; with machine devices and routes too, with elements all of
// the tables.
func (d *Driver) check(ctx context.Context, machine, elements bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.left {
		return
	}
	broken := false
	for _, f := range families {
		t := d.tables[f]
		if !t.loaded || t.hashes == nil {
			continue
		}
		if err := t.intact(); err != nil {
			d.log.Warn("a table was changed by somebody else; making it again", "table", string(f.nft())+" "+tableName, "found", err)
			d.count.repaired("table")
			t.loaded, broken = false, true
		} else if elements {
			t.loaded = false
		}
	}
	for _, t := range []*ruleTable{&d.tunnelTable.ruleTable, &d.arpTable.ruleTable} {
		if err := t.lost(); err != nil {
			d.log.Warn("a table was changed by somebody else; making it again", "table", t.name, "found", err)
			d.count.repaired("table")
			broken = true
		}
	}
	if !broken && !machine && !elements {
		return
	}
	before := len(d.problems)
	if err := d.reconcile(ctx); err != nil && before == 0 {
		d.log.Error("keeping the data plane as it should be", "error", err)
	}
}

// intact says what of the table's chains and rules is not as it was written.
func (w *tableState) intact() error {
	of := uint8(unix.NFPROTO_IPV4)
	if w.family.six {
		of = unix.NFPROTO_IPV6
	}
	found, err := comments(of)
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

// comments are those of the rules of our table of a family (NFPROTO_…), by chain, in order; a rule without one has an empty one. What
// rules do is not looked at: a library that reads it as well fails at expressions that it does not know.
func comments(of uint8) (map[string][]string, error) {
	// linux/netfilter/nf_tables.h
	const getRule, ruleTable, ruleChain, ruleUserData = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, 1, 2, 7
	msgs, err := kernel.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(getRule, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: of})
		req.AddData(nl.NewRtAttr(ruleTable, nl.ZeroTerminated(tableName)))
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
		if table == tableName {
			out[chain] = append(out[chain], comment)
		}
	}
	return out, nil
}

// generation is that of nftables, with the number of transactions that were ours until then.
func (d *Driver) generation() (now, ours uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err = generation()
	for _, t := range d.tables {
		ours += t.commits
	}
	return now, ours + d.tunnelTable.commits + d.arpTable.commits, err
}

// generation is the number of changes of the network namespace's nftables (NFT_MSG_GETGEN).
func generation() (uint32, error) {
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
	return 0, errors.New("the kernel told no generation")
}
