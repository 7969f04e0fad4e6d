// SPDX-License-Identifier: Apache-2.0

// Package fib puts the routes that a BGP process learned into the kernel, with a protocol number of
// their own, and keeps them there: next hops are found anew when links or other routes change. A
// prefix that several routers lead to is one route by all of them (multipath).
// Routes that an earlier process left stay until Settle says that what is learned now is complete,
// so that a process that is killed or replaced loses no packet. Routes of others are not touched.
package fib

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/sleep"
)

const (
	// Protocol marks the routes (rtm_protocol, rtnetlink(7)): of the range for user space daemons.
	Protocol = 88
	// Metric is behind that of what the machine has by its interfaces and of what Weir routes on
	// one link (0, of IPv6 256), and before that of Weir's routes to nodes that are farther away
	// (2048).
	Metric = 512
	// settle is how long to wait after a change for others that belong to it, refresh how long a
	// change of the machine is missed at most whose notice was lost.
	settle  = 20 * time.Millisecond
	refresh = 30 * time.Second
)

// Table is the learned routes. It is safe for concurrent use.
type Table struct {
	log  *slog.Logger
	wake chan struct{}

	mu      sync.Mutex
	learned map[netip.Prefix][]path // none is empty
	told    map[netip.Addr]bool     // peers that have told all that they had, or have had time to
	want    Config
	stale   stale
	status  Status
}

// stale says what stays in the kernel of what an earlier process left.
type stale int

const (
	keepHops   stale = iota // routes, and in those with other next hops the ones of peers not in told
	keepRoutes              // routes that no peer has told
	keepNone
)

// Config is what is in force besides what is learned.
type Config struct {
	// Keep are prefixes within which routes are left out, Sources which sources routes prefer, at
	// most one of each family.
	Keep    []netip.Prefix
	Sources []netip.Addr
	// Fixed are next hops of addresses that are reached by them whatever is learned.
	Fixed map[netip.Addr]netip.Addr
}

// path is a way to a prefix that a peer told.
type path struct {
	peer, via netip.Addr
	last      bool
}

// Status says what became of the routes.
type Status struct {
	Learned, Installed int
	// Unresolved is the number of those whose next hop is not reached by another route, Kept of
	// those that are not put there because the node has the prefix itself or carries it otherwise.
	Unresolved, Kept int
	Err              string `json:",omitempty"`
}

// New returns a table without routes.
func New(log *slog.Logger) *Table {
	return &Table{log: log, wake: make(chan struct{}, 1), learned: map[netip.Prefix][]path{}, told: map[netip.Addr]bool{}}
}

// Learn notes that a peer leads to a prefix by a next hop, or with an invalid one that it does no
// longer. One that comes last is used while there are no others.
func (t *Table) Learn(p netip.Prefix, peer, via netip.Addr, last bool) {
	p = p.Masked()
	t.mu.Lock()
	paths := slices.DeleteFunc(t.learned[p], func(one path) bool { return one.peer == peer })
	if via.IsValid() {
		paths = append(paths, path{peer: peer, via: via, last: last})
	}
	if t.learned[p] = paths; len(paths) == 0 {
		delete(t.learned, p)
	}
	t.mu.Unlock()
	t.soon()
}

// Configure says what is in force besides what is learned.
func (t *Table) Configure(want Config) {
	t.mu.Lock()
	t.want = want
	t.mu.Unlock()
	t.soon()
}

// SettlePeer says that a peer has told all that it had, or has had time to: it is the next hop of
// a route that others have told only if it has told it, too.
func (t *Table) SettlePeer(peer netip.Addr) {
	t.mu.Lock()
	t.told[peer] = true
	t.mu.Unlock()
	t.soon()
}

// SettleHops says so of all next hops. Routes that no peer has told stay until Settle.
func (t *Table) SettleHops() {
	t.mu.Lock()
	t.stale = max(t.stale, keepRoutes)
	t.mu.Unlock()
	t.soon()
}

// Settle says that all is learned that there is: what is in the kernel and was not learned goes.
func (t *Table) Settle() {
	t.mu.Lock()
	t.stale = keepNone
	t.mu.Unlock()
	t.soon()
}

// Clear forgets all routes, the fixed ones too, and takes them out of the kernel.
func (t *Table) Clear() {
	t.mu.Lock()
	t.learned, t.want.Fixed, t.stale = map[netip.Prefix][]path{}, nil, keepNone
	t.mu.Unlock()
	t.soon()
}

// Forget forgets all routes, which stay in the kernel until Settle.
func (t *Table) Forget() {
	t.mu.Lock()
	t.learned, t.stale, t.told = map[netip.Prefix][]path{}, keepHops, map[netip.Addr]bool{}
	t.mu.Unlock()
}

// Status says what became of the routes at the last pass.
func (t *Table) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

func (t *Table) soon() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run keeps the kernel's routes until ctx ends. It leaves them there.
func (t *Table) Run(ctx context.Context) error {
	notices, err := watchRoutes(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-tick.C:
		case _, ok := <-notices:
			if !ok { // lost some
				if notices, err = watchRoutes(ctx); err != nil {
					return err
				}
			}
		}
		if sleep.For(ctx, settle) != nil {
			return nil
		}
		t.pass()
	}
}

// watchRoutes reports changes of links and of routes that are not learned, until it loses some or
// ctx ends: then the channel is closed.
func watchRoutes(ctx context.Context) (<-chan struct{}, error) {
	n, err := kernel.Subscribe()
	if err != nil {
		return nil, err
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		defer n.Close()
		for {
			ours := false
			select {
			case <-ctx.Done():
				return
			case u, ok := <-n.Routes:
				if !ok {
					return
				}
				ours = u.Protocol == Protocol && u.Type == unix.RTM_NEWROUTE
			case _, ok := <-n.Links:
				if !ok {
					return
				}
			}
			if !ours {
				select {
				case out <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out, nil
}

// pass makes the kernel's routes equal to those that are learned.
func (t *Table) pass() {
	t.mu.Lock()
	hops, want := make(map[netip.Prefix][]netip.Addr, len(t.learned)), t.want
	old := leftover{keep: t.stale, told: maps.Clone(t.told)}
	for p, paths := range t.learned {
		hops[p] = used(paths)
	}
	t.mu.Unlock()
	learned := len(hops)
	for a, via := range want.Fixed {
		hops[netip.PrefixFrom(a, a.BitLen())] = []netip.Addr{via}
	}
	status, err := reconcile(hops, want, old)
	status.Learned = learned
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if status.Err = err.Error(); status.Err != t.status.Err {
			t.log.Error("learned routes are not all in the kernel", "error", err)
		}
	}
	t.status = status
}

// used are the next hops of those paths that are used, sorted.
func used(paths []path) []netip.Addr {
	first := slices.ContainsFunc(paths, func(p path) bool { return !p.last })
	out := make([]netip.Addr, 0, len(paths))
	for _, p := range paths {
		if !p.last || !first {
			out = append(out, p.via)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
