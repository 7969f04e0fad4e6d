// SPDX-License-Identifier: Apache-2.0

// Package machine reads what the kernel knows of the node's machine, and goes on reading whenever
// that changes: interfaces with their addresses, next hops of routes, and link addresses that ARP
// and neighbour discovery found. Facts are what the model of the cluster takes from it: the node's
// own addresses, subnets on its uplinks, the MTU, and what is missing. Weir's own devices, and
// those of pods, are left out.
package machine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/announce"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// Watcher follows the machine's own addresses and links.
type Watcher struct {
	log *slog.Logger

	mu         sync.Mutex
	links      []Link
	gateways   []netip.Addr
	neighbours map[netip.Addr][6]byte // link addresses as ARP and neighbour discovery found them
	isRead     bool
}

// Link is one interface with its addresses.
type Link struct {
	Name     string
	Index    int
	MTU      int
	MAC      net.HardwareAddr
	Loopback bool
	Up       bool
	Addrs    []netip.Prefix
}

func (l Link) equal(o Link) bool {
	return l.Name == o.Name && l.Index == o.Index && l.MTU == o.MTU && bytes.Equal(l.MAC, o.MAC) &&
		l.Loopback == o.Loopback && l.Up == o.Up && slices.Equal(l.Addrs, o.Addrs)
}

const (
	// settleTime is how long to wait after a change for others that belong to it.
	settleTime = 50 * time.Millisecond
	// refreshEvery bounds how long a change is missed whose notice was lost.
	refreshEvery = 30 * time.Second
)

// New reads the machine once.
func New(log *slog.Logger) (*Watcher, error) {
	l := &Watcher{log: log}
	_, err := l.read()
	return l, err
}

// Run reads the machine again whenever addresses or links change, and calls changed when something
// is different.
func (l *Watcher) Run(ctx context.Context, changed func()) error {
	links, addrs, done := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64), make(chan struct{})
	defer func() { close(done) }()
	subscribe := func() error {
		links, addrs = make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
		if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: func(error) {}}); err != nil {
			return fmt.Errorf("subscribing to changes of links: %w", err)
		}
		if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{ErrorCallback: func(error) {}}); err != nil {
			return fmt.Errorf("subscribing to changes of addresses: %w", err)
		}
		return nil
	}
	if err := subscribe(); err != nil {
		return err
	}
	soon := time.NewTimer(0)
	defer soon.Stop()
	pending := true
	refresh := time.NewTicker(refreshEvery)
	defer refresh.Stop()
	later := func() {
		if !pending {
			pending = true
			soon.Reset(settleTime)
		}
	}
	for {
		lost := false
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-links:
			lost = !ok
			later()
		case _, ok := <-addrs:
			lost = !ok
			later()
		case <-refresh.C:
			later()
		case <-soon.C:
			pending = false
			different, err := l.read()
			if err != nil {
				l.log.Error("reading the node's interfaces; going on with what is known", "error", err)
			}
			if different {
				changed()
			}
		}
		if lost {
			close(done)
			done = make(chan struct{})
			if err := subscribe(); err != nil {
				return err
			}
		}
	}
}

// Of is a machine with these interfaces, for tests. It is not read.
func Of(links ...Link) *Watcher { return &Watcher{links: links, isRead: true} }

// read reports whether something is different.
func (l *Watcher) read() (bool, error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("listing interfaces: %w", err)
	}
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("listing addresses: %w", err)
	}
	byLink := map[int][]netip.Prefix{}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		bits, _ := a.Mask.Size()
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), bits))
	}
	var facts []Link
	for _, k := range links {
		at := k.Attrs()
		f := Link{
			Name: at.Name, Index: at.Index, MTU: at.MTU, MAC: at.HardwareAddr,
			Loopback: at.Flags&net.FlagLoopback != 0, Up: at.Flags&net.FlagUp != 0, Addrs: byLink[at.Index],
		}
		if at.Alias == "weir" || strings.HasPrefix(at.Alias, "weir:") {
			continue // our own devices, and pods'
		}
		slices.SortFunc(f.Addrs, netip.Prefix.Compare)
		facts = append(facts, f)
	}
	slices.SortFunc(facts, func(a, b Link) int { return a.Index - b.Index })
	ours := map[int]bool{}
	for _, f := range facts {
		ours[f.Index] = true
	}
	neighbours, err := readNeighbours(ours)
	if err != nil {
		return false, err
	}
	routers, err := gateways()
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isRead && slices.EqualFunc(l.links, facts, Link.equal) && slices.Equal(l.gateways, routers) && maps.Equal(l.neighbours, neighbours) {
		return false, nil
	}
	l.links, l.gateways, l.neighbours, l.isRead = facts, routers, neighbours, true
	return true, nil
}

// Facts are what a cluster's Local takes from the machine, and what is reported of it.
type Facts struct {
	Addrs   []netip.Addr
	Subnets []netip.Prefix
	MTU     int
	MAC     net.HardwareAddr // of the uplink that holds the node's address
	Links   []model.LocalInterface
	Missing []netip.Addr // addresses of the node that no interface holds

	Gateways []netip.Addr
}

// Interfaces are those that the node's status has: with addresses, as far as others can have them
// as peers, the first ones by index.
func (f Facts) Interfaces() []weirv1.NodeInterface {
	var out []weirv1.NodeInterface
	for _, l := range f.Links {
		i := weirv1.NodeInterface{Name: l.Name}
		for _, a := range l.Addrs {
			if isPeer(a) && len(i.Addresses) < weirv1.MaxInterfaceAddresses {
				i.Addresses = append(i.Addresses, a.String())
			}
		}
		if len(i.Addresses) > 0 && len(out) < weirv1.MaxInterfaces {
			out = append(out, i)
		}
	}
	return out
}

// isPeer reports whether others can have an address as their peer. Of IPv6's link-local ones each
// link has its own; those of IPv4 are as any other (NodeLocal DNSCache).
func isPeer(a netip.Addr) bool {
	return !(a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified())
}

// excluded are interfaces whose addresses are not the node's: those of kube-proxy's IPVS mode are
// the Services' (interfaceExclude).
var excluded = map[string]bool{"kube-ipvs0": true}

// Facts computes from what was read. Uplinks are those that isUplink says; node are the addresses
// by which others know the node, one a family at most. The link of the first that there is counts
// as the node's.
func (l *Watcher) Facts(node []netip.Addr, isUplink func(string) bool, podPrefix string) Facts {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := Facts{Missing: slices.Clone(node), Gateways: l.gateways}
	link := len(node) + 1 // how good the link is that m.mtu is of: smaller is better
	for _, f := range l.links {
		if excluded[f.Name] || podPrefix != "" && strings.HasPrefix(f.Name, podPrefix) && !isUplink(f.Name) {
			continue
		}
		if !f.Loopback {
			m.Links = append(m.Links, f.modelled())
		}
		rank := len(node) + 1
		if isUplink(f.Name) && f.Up {
			rank = len(node) // until the node's address is known or there
		}
		for _, p := range f.Addrs {
			a := p.Addr()
			if !isPeer(a) {
				continue
			}
			m.Addrs = append(m.Addrs, a)
			if i := slices.Index(node, a); i >= 0 {
				rank = min(rank, i)
				m.Missing = slices.DeleteFunc(m.Missing, func(x netip.Addr) bool { return x == a })
			}
			if isUplink(f.Name) && !f.Loopback && p.Bits() < a.BitLen() && !a.IsLinkLocalUnicast() {
				m.Subnets = append(m.Subnets, p.Masked())
			}
		}
		if rank >= link {
			continue
		}
		m.MTU, m.MAC, link = f.MTU, nil, rank
		if rank < len(node) {
			m.MAC = f.MAC
		}
	}
	slices.SortFunc(m.Addrs, netip.Addr.Compare)
	m.Addrs = slices.Compact(m.Addrs)
	slices.SortFunc(m.Subnets, netip.Prefix.Compare)
	m.Subnets = slices.Compact(m.Subnets)
	if len(m.MAC) != 6 {
		m.MAC = nil
	}
	return m
}

// AddrsOf returns the addresses of the interfaces whose names begin with prefix, sorted, each once:
// another CNI plugin may give the host side of a pod's interface an address of the node's own, by
// which its processes reach the pod.
func (l *Watcher) AddrsOf(prefix string) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []netip.Addr
	for _, f := range l.links {
		if !strings.HasPrefix(f.Name, prefix) {
			continue
		}
		for _, p := range f.Addrs {
			if a := p.Addr(); a.IsGlobalUnicast() {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// modelled is the interface as the model has it.
func (l Link) modelled() model.LocalInterface {
	out := model.LocalInterface{Name: l.Name, IfIndex: l.Index}
	if len(l.MAC) == 6 {
		out.MAC = [6]byte(l.MAC)
	}
	for _, p := range l.Addrs {
		out.Addrs = append(out.Addrs, p.Addr())
	}
	return out
}

// Uplinks returns the uplinks that are up, with the subnets of their addresses.
func (l *Watcher) Uplinks(isUplink func(string) bool) []announce.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []announce.Link
	for _, f := range l.links {
		if !f.Up || f.Loopback || excluded[f.Name] || !isUplink(f.Name) {
			continue
		}
		link := announce.Link{Index: f.Index, Name: f.Name, MAC: f.MAC}
		for _, p := range f.Addrs {
			if a := p.Addr(); p.Bits() < a.BitLen() && !a.IsLinkLocalUnicast() {
				link.Subnets = append(link.Subnets, p.Masked())
			}
		}
		out = append(out, link)
	}
	return out
}
