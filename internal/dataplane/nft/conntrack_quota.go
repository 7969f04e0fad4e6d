// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// How often the table is looked at, and how much of it a pod may have.
const (
	// freePart is how much of what is free a pod may have while more than half of the table is
	// used: 1 in freePart.
	freePart = 4

	// pollConnections is how often the driver looks how full the table is. Then it counts at most
	// each countConnectionsEvery, and for a countPart of the time.
	pollConnections       = 200 * time.Millisecond
	countConnectionsEvery = time.Second
	countPart             = 10
)

// connections is the size of the table of connection tracking; 0 = there is no limit, or nothing is
// tracked.
func (d *Driver) connections() (uint32, error) {
	if d.opts.Connections > 0 {
		return d.opts.Connections, nil
	}
	n, err := kernel.Sysctl("net", "netfilter", "nf_conntrack_max")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return uint32(max(n, 0)), err
}

// shareConnections holds pods to their shares until ctx ends.
func (d *Driver) shareConnections(ctx context.Context) {
	tick := time.NewTicker(pollConnections)
	defer tick.Stop()
	var next time.Time // count not before
	pressed := true    // an agent before this one may have left shares
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		most, err := d.connections()
		used, err2 := kernel.Sysctl("net", "netfilter", "nf_conntrack_count")
		if errors.Is(err2, fs.ErrNotExist) {
			continue // nothing is tracked yet
		}
		if err := errors.Join(err, err2); err != nil {
			d.log.Error("asking how many connections are tracked", "error", err)
			continue
		}
		v := d.view.Load()
		if v == nil || time.Now().Before(next) {
			continue
		}
		if most == 0 || uint32(used) <= most/2 {
			if pressed {
				if err := d.setShares(ctx, nil, nil); err != nil {
					d.log.Error("letting pods begin connections again", "error", err)
					continue
				}
				pressed = false
			}
			continue
		}
		pressed = true
		begin := time.Now()
		pods := podsOf(v.State)
		err = pods.count()
		if err == nil {
			err = d.setShares(ctx, pods.shares(max(0, int(most)-used)/freePart), pods.held(max(0, int(most)-used)/freePart))
		}
		if err != nil {
			d.log.Error("holding pods to their shares of connection tracking", "error", err)
		}
		next = time.Now().Add(max(countConnectionsEvery, countPart*time.Since(begin)))
	}
}

// setShares writes what applies to pods' addresses while the table fills: verdicts of MapShares.
func (d *Driver) setShares(ctx context.Context, shares map[netip.Addr]string, held []dataplane.HeldPod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return nil // another data plane begins connections now
	}
	if len(held) > 0 && len(d.held) == 0 {
		d.log.Warn("connection tracking is more than half full; pods that have more than a quarter of what is free begin no connection",
			slog.Any("pods", held))
	}
	d.held = held
	var errs []error
	for f, t := range d.tables {
		of := map[netip.Addr]string{}
		for a, to := range shares {
			if f.Has(a) {
				of[a] = to
			}
		}
		if maps.Equal(of, t.shares) {
			continue
		}
		t.shares = of
		if t.numbers == nil || !t.Current() { // they come with the next state
			continue
		}
		want := map[string]string{}
		for a, to := range of {
			want[a.String()] = to
		}
		t.Tracker(chains.MapShares).Desire(maps.All(want))
		errs = append(errs, t.Write(ctx))
	}
	return errors.Join(errs...)
}

// addShares adds what applies to the addresses that are pods' still.
func (t *familyTable) addShares(static *table.Table, s *nodestate.State) {
	for a, to := range t.shares {
		if s.Addrs[a].Kind == nodestate.AddrEndpoint {
			static.Add(chains.MapShares, a.String(), to)
		}
	}
}

// Held are the pods that begin no connection, as of the last count: by the address with most
// connections, with those that the pod began from all of its addresses.
func (d *Driver) Held() ([]dataplane.HeldPod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.held), nil
}

// podConnections are the connections that the pods of a node began.
type podConnections struct {
	pods  map[netip.Addr]string // the interface of the pod that has an address
	of    map[netip.Addr]int
	total map[string]int // by interface
}

func podsOf(s *nodestate.State) podConnections {
	p := podConnections{pods: map[netip.Addr]string{}, of: map[netip.Addr]int{}, total: map[string]int{}}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint {
			p.pods[a] = v.Interface
		}
	}
	return p
}

// count reads the table. A connection is that of the pod that began it, not of the one that it
// leads to.
func (p podConnections) count() error {
	t, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer t.Close()
	for _, f := range table.Families {
		err := t.Each(f.Six, func(e conntrack.Entry) {
			a := e.Orig.Src
			if pod, ok := p.pods[a]; ok {
				p.of[a]++
				p.total[pod]++
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// shares are the verdicts of all pods' addresses, where a pod may have so many connections.
func (p podConnections) shares(most int) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for a, pod := range p.pods {
		out[a] = "goto " + chains.PodPressedChain
		if p.total[pod] > most {
			out[a] = "goto " + expr.DenyName(reason.Share, 0)
		}
	}
	return out
}

// held are the pods that have more than so many connections, those with most first.
func (p podConnections) held(most int) []dataplane.HeldPod {
	by := map[string]dataplane.HeldPod{}
	for a, pod := range p.pods {
		if n := p.total[pod]; n > most {
			if h, ok := by[pod]; !ok || p.of[a] > p.of[h.Addr] || p.of[a] == p.of[h.Addr] && a.Less(h.Addr) {
				by[pod] = dataplane.HeldPod{Addr: a, Entries: n}
			}
		}
	}
	return slices.SortedFunc(maps.Values(by), func(a, b dataplane.HeldPod) int { return b.Entries - a.Entries })
}
