// SPDX-License-Identifier: Apache-2.0

// Package fib puts the routes that a BGP process learned into the kernel, with a protocol number of
// their own, and keeps them there: next hops are found anew when links or other routes change.
// Routes that an earlier process left stay until Settle says that what is learned now is complete,
// so that a process that is killed or replaced loses no packet. Routes of others are not touched.
package fib

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
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
	learned map[netip.Prefix]netip.Addr // by prefix, the next hop
	keep    []netip.Prefix
	sources []netip.Addr
	settled bool
	status  Status
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
	return &Table{log: log, wake: make(chan struct{}, 1), learned: map[netip.Prefix]netip.Addr{}}
}

// Learn notes a route, or with an invalid next hop that it is gone.
func (t *Table) Learn(p netip.Prefix, nexthop netip.Addr) {
	t.mu.Lock()
	if nexthop.IsValid() {
		t.learned[p.Masked()] = nexthop
	} else {
		delete(t.learned, p.Masked())
	}
	t.mu.Unlock()
	t.soon()
}

// Configure says within which prefixes routes are left out, and which sources they prefer.
func (t *Table) Configure(keep []netip.Prefix, sources []netip.Addr) {
	t.mu.Lock()
	t.keep, t.sources = keep, sources
	t.mu.Unlock()
	t.soon()
}

// Settle says that all is learned that there is: what is in the kernel and was not learned goes.
func (t *Table) Settle() {
	t.mu.Lock()
	t.settled = true
	t.mu.Unlock()
	t.soon()
}

// Clear forgets all routes, and takes them out of the kernel.
func (t *Table) Clear() {
	t.mu.Lock()
	t.learned, t.settled = map[netip.Prefix]netip.Addr{}, true
	t.mu.Unlock()
	t.soon()
}

// Forget forgets all routes, which stay in the kernel until Settle.
func (t *Table) Forget() {
	t.mu.Lock()
	t.learned, t.settled = map[netip.Prefix]netip.Addr{}, false
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
	routes, links, done := make(chan netlink.RouteUpdate, 256), make(chan netlink.LinkUpdate, 64), make(chan struct{})
	failed := make(chan struct{}, 2)
	fail := func(error) {
		select {
		case failed <- struct{}{}:
		default:
		}
	}
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: fail}); err != nil {
		return nil, fmt.Errorf("subscribing to changes of routes: %w", err)
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: fail}); err != nil {
		close(done)
		return nil, fmt.Errorf("subscribing to changes of links: %w", err)
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		defer close(done)
		for {
			ours := false
			select {
			case <-ctx.Done():
				return
			case <-failed:
				return
			case u, ok := <-routes:
				if !ok {
					return
				}
				ours = u.Protocol == Protocol && u.Type == unix.RTM_NEWROUTE
			case _, ok := <-links:
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

// route is what is written of one.
type route struct {
	link int
	via  netip.Addr
	src  netip.Addr
}

// pass makes the kernel's routes equal to those that are learned.
func (t *Table) pass() {
	t.mu.Lock()
	learned, keep, sources, settled := maps.Clone(t.learned), t.keep, t.sources, t.settled
	t.mu.Unlock()
	status, err := reconcile(learned, keep, sources, settled)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if status.Err = err.Error(); status.Err != t.status.Err {
			t.log.Error("learned routes are not all in the kernel", "error", err)
		}
	}
	t.status = status
}

// listed are the routes of our protocol by prefix.
func listed() (map[netip.Prefix]netlink.Route, error) {
	have := map[netip.Prefix]netlink.Route{}
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("listing learned routes: %w", err)
		}
		for _, r := range found {
			have[kernel.RoutePrefix(r.Dst, f)] = r
		}
	}
	return have, nil
}

// Hop is how the kernel reaches a prefix.
type Hop struct {
	Interface string
	Gateway   netip.Addr
}

// Listed are the learned routes that are in the kernel.
func Listed() (map[netip.Prefix]Hop, error) {
	have, err := listed()
	out, names := map[netip.Prefix]Hop{}, map[int]string{}
	for p, r := range have {
		name, known := names[r.LinkIndex]
		if !known {
			if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil { // one that is gone takes its routes away
				name = l.Attrs().Name
			}
			names[r.LinkIndex] = name
		}
		gw, _ := netip.AddrFromSlice(r.Gw)
		out[p] = Hop{Interface: name, Gateway: gw.Unmap()}
	}
	return out, err
}

func reconcile(learned map[netip.Prefix]netip.Addr, keep []netip.Prefix, sources []netip.Addr, settled bool) (Status, error) {
	st := Status{Learned: len(learned)}
	have, err := listed()
	if err != nil {
		return st, err
	}
	var errs []error
	found := map[netip.Addr]resolved{}
	for p, nexthop := range learned {
		if !unicast(p) || within(keep, p) {
			st.Kept++
			continue
		}
		hop, ok := found[nexthop]
		if !ok {
			hop = resolve(nexthop)
			found[nexthop] = hop
		}
		if hop.link == 0 || hop.by == p {
			st.Unresolved++
			continue // one that is there goes
		}
		want := route{link: hop.link, via: hop.via, src: like(sources, p.Addr())}
		there, was := have[p]
		delete(have, p)
		if was && want.is(there) {
			st.Installed++
			continue
		}
		if err := want.put(p, was); err != nil {
			errs = append(errs, fmt.Errorf("route %s via %s: %w", p, nexthop, err))
			continue
		}
		st.Installed++
	}
	for p, r := range have {
		if _, known := learned[p]; !known && !settled {
			continue
		}
		if err := drop(p, r); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("and %d more", len(errs)-5))
	}
	return st, errors.Join(errs...)
}

// unicast reports whether a prefix is one that a machine routes.
func unicast(p netip.Prefix) bool {
	a := p.Addr()
	return p.IsValid() && !a.IsMulticast() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !(a.Is4() && a.As4()[0] == 0 && p.Bits() > 0)
}

// within reports whether one of the prefixes holds all of p.
func within(all []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(all, func(k netip.Prefix) bool { return k.Bits() <= p.Bits() && k.Contains(p.Addr()) })
}

func like(all []netip.Addr, a netip.Addr) netip.Addr {
	for _, s := range all {
		if s.Is4() == a.Is4() {
			return s
		}
	}
	return netip.Addr{}
}

// resolved is how a next hop is reached: the zero value = it is not. by is the learned route that
// leads there, if one does.
type resolved struct {
	link int
	via  netip.Addr
	by   netip.Prefix
}

func resolve(nexthop netip.Addr) resolved {
	found, err := netlink.RouteGetWithOptions(nexthop.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(found) == 0 || found[0].Type != unix.RTN_UNICAST || found[0].LinkIndex == 0 {
		return resolved{}
	}
	r := resolved{link: found[0].LinkIndex, via: nexthop}
	if gw, ok := netip.AddrFromSlice(found[0].Gw); ok && !gw.IsUnspecified() {
		r.via = gw.Unmap()
	}
	if found[0].Protocol == Protocol {
		f := netlink.FAMILY_V6
		if nexthop.Is4() {
			f = netlink.FAMILY_V4
		}
		r.by = kernel.RoutePrefix(found[0].Dst, f)
	}
	// Weir's own device: a prefix of a pool, where nobody is who hands packets on.
	if l, err := netlink.LinkByIndex(r.link); err != nil || l.Attrs().Name == "weir0" {
		return resolved{}
	}
	return r
}

func (r route) is(k netlink.Route) bool {
	gw, _ := netip.AddrFromSlice(k.Gw)
	src, _ := netip.AddrFromSlice(k.Src)
	return k.LinkIndex == r.link && gw.Unmap() == r.via && src.Unmap() == r.src && k.Priority == Metric
}

func (r route) put(p netip.Prefix, replace bool) error {
	k := &netlink.Route{LinkIndex: r.link, Protocol: Protocol, Priority: Metric, Gw: r.via.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if r.src.IsValid() {
		k.Src = r.src.AsSlice()
	}
	if replace {
		return netlink.RouteReplace(k)
	}
	err := netlink.RouteAdd(k)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("somebody else has a route with metric %d: %w", Metric, err)
	}
	return err
}

// Remove takes all learned routes out of the kernel.
func Remove() error {
	have, err := listed()
	if err != nil {
		return err
	}
	var errs []error
	for p, r := range have {
		errs = append(errs, drop(p, r))
	}
	return errors.Join(errs...)
}

// drop takes a route out of the kernel, if it is there.
func drop(p netip.Prefix, r netlink.Route) error {
	if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing route %s: %w", p, err)
	}
	return nil
}
