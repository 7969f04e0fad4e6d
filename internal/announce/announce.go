// SPDX-License-Identifier: Apache-2.0

// Package announce is the node's own part in answering neighbours for addresses that no interface
// has: it announces on the link when this node takes an address over, and it looks whether the
// nodes that this one would take over from are still there. The answers themselves are made by the
// data plane.
package announce

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is an uplink.
type Link struct {
	Index   int
	Name    string
	MAC     net.HardwareAddr
	Subnets []netip.Prefix // on-link, with the interface's own address
}

// Config is what an Announcer needs.
type Config struct {
	Log *slog.Logger
	// Links returns the uplinks as they are now.
	Links func() []Link
	// Silent is called whenever more or something else is known of the watched addresses: true =
	// does not answer, false = does, with the MAC address that was expected. It must not block.
	Silent func(map[netip.Addr]bool)
}

const (
	// tick is the time between two looks; a watched node is asked as often.
	tick = 500 * time.Millisecond
	// refresh is the interval at which everything is announced again: a node whose link was cut for
	// a while does not know that another one answered meanwhile.
	refresh = 30 * time.Second
	// burst is how many announcements a tick sends at most.
	burst = 100
	// remember is for how long it is kept what was found of an address that is watched no longer: a
	// node that is chosen by turns does not have to be found silent each time.
	remember = 10 * time.Minute
)

// repeats are the times after taking an address over at which that is announced: hosts ignore what
// comes within a second of another answer, and any one may be lost.
var repeats = []time.Duration{0, time.Second, 3 * time.Second}

// Announcer does both. It is safe for concurrent use.
type Announcer struct {
	cfg  Config
	wake chan struct{}

	mu        sync.Mutex
	announced map[netip.Addr]bool
	watched   map[netip.Addr][6]byte

	// Of Run only.
	groups groups
	joins  string // why the last update of groups failed
	taken  map[netip.Addr]*claim
	silent map[netip.Addr]bool      // as Config.Silent was called
	looked map[netip.Addr]time.Time // at those of silent
	now    func() time.Time
	send   func(Link, netip.Addr) error
}

// claim is an address that this node announces.
type claim struct {
	since time.Time
	sent  int       // of repeats
	last  time.Time // announcement
}

// New returns an Announcer that announces nothing yet.
func New(cfg Config) *Announcer {
	return &Announcer{cfg: cfg, wake: make(chan struct{}, 1), groups: groups{joined: map[membership]string{}}, taken: map[netip.Addr]*claim{}, silent: map[netip.Addr]bool{},
		looked: map[netip.Addr]time.Time{}, now: time.Now, send: gratuitous}
}

// Update sets what is announced and which nodes are watched, with their MAC addresses. The maps
// must not change any more.
func (a *Announcer) Update(announced map[netip.Addr]bool, watched map[netip.Addr][6]byte) {
	a.mu.Lock()
	a.announced, a.watched = announced, watched
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Announced returns the addresses that this node answers for.
func (a *Announcer) Announced() map[netip.Addr]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.announced)
}

// Run works until ctx ends.
func (a *Announcer) Run(ctx context.Context) error {
	t := time.NewTicker(tick)
	defer t.Stop()
	defer a.groups.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-t.C:
			a.look()
		}
		a.join() // before it is called: its receiver may ask
		a.announce()
	}
}

// join makes the uplinks receive what neighbours ask for the announced addresses.
func (a *Announcer) join() {
	a.mu.Lock()
	announced := a.announced
	a.mu.Unlock()
	six := len(a.groups.joined) > 0
	for addr := range announced {
		six = six || addr.Is6()
	}
	if !six {
		return
	}
	why := ""
	if err := a.groups.update(wanted(announced, a.cfg.Links())); err != nil {
		why = err.Error()
	}
	if why != a.joins && why != "" {
		a.cfg.Log.Warn("an uplink does not receive what neighbours ask; they find an announced address only when it is announced", "error", why)
	}
	a.joins = why
}

// announce sends what is due.
func (a *Announcer) announce() {
	a.mu.Lock()
	announced := a.announced
	a.mu.Unlock()
	now := a.now()
	for addr := range a.taken {
		if _, still := announced[addr]; !still {
			delete(a.taken, addr)
			a.cfg.Log.Info("answers neighbours for an address no longer", "address", addr)
		}
	}
	var links []Link
	sent := 0
	for addr := range announced {
		c := a.taken[addr]
		if c == nil {
			c = &claim{since: now}
			a.taken[addr] = c
			a.cfg.Log.Info("answers neighbours for an address", "address", addr)
		}
		due := c.sent < len(repeats) && now.Sub(c.since) >= repeats[c.sent] || now.Sub(c.last) >= refresh
		if !due || sent == burst {
			continue
		}
		if links == nil {
			links = a.cfg.Links()
		}
		c.sent, c.last = c.sent+1, now
		sent++
		if err := a.broadcast(links, addr); err != nil {
			a.cfg.Log.Warn("cannot announce an address on the link; neighbours find out when they ask", "address", addr, "error", err)
		}
	}
}

// broadcast announces an address on the uplinks whose subnets it lies in.
func (a *Announcer) broadcast(links []Link, addr netip.Addr) error {
	for _, l := range links {
		for _, p := range l.Subnets {
			if !p.Contains(addr) || len(l.MAC) != 6 {
				continue
			}
			if err := a.send(l, addr); err != nil {
				return fmt.Errorf("on %s: %w", l.Name, err)
			}
			break
		}
	}
	return nil
}

// look asks the watched nodes, and reports when other than before is known of them.
func (a *Announcer) look() {
	a.mu.Lock()
	watched := a.watched
	a.mu.Unlock()
	if len(watched) == 0 && len(a.silent) == 0 {
		return
	}
	now := a.now()
	silent := map[netip.Addr]bool{}
	for addr, was := range a.silent {
		if _, still := watched[addr]; !still && now.Sub(a.looked[addr]) < remember {
			silent[addr] = was
		}
	}
	links := a.cfg.Links()
	for addr, mac := range watched {
		for _, l := range links {
			if onLink(l, addr) {
				if is, known := a.ask(l, addr, mac); known {
					silent[addr], a.looked[addr] = is, now
				}
				break
			}
		}
	}
	maps.DeleteFunc(a.looked, func(addr netip.Addr, _ time.Time) bool { _, known := silent[addr]; return !known })
	if maps.Equal(silent, a.silent) {
		return
	}
	for addr := range watched {
		switch was := a.silent[addr]; {
		case silent[addr] && !was:
			a.cfg.Log.Warn("a node does not answer on the link; the addresses that it answered for are taken over", "node", addr)
		case was && !silent[addr]:
			a.cfg.Log.Info("a node answers on the link again", "node", addr)
		}
	}
	a.silent = silent
	a.cfg.Silent(maps.Clone(silent))
}

// ask looks after a watched node. That another MAC address answers says nothing: some networks
// answer in their hosts' place.
func (a *Announcer) ask(l Link, addr netip.Addr, mac [6]byte) (silent, known bool) {
	before, had := a.silent[addr]
	silent, at, err := probe(l.Index, addr, before)
	if err != nil {
		a.cfg.Log.Debug("cannot look after a node", "address", addr, "error", err)
	}
	switch at {
	case [6]byte{}:
		return silent, had || silent
	case mac:
		return silent, true
	}
	return silent, silent
}

func onLink(l Link, addr netip.Addr) bool {
	for _, p := range l.Subnets {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// probe has the kernel ask a neighbour whether it is there (RFC 4861 section 7.3, for ARP alike),
// and returns what is known: three questions without an answer, one a second, make it silent. at is
// the MAC address that answered last, zero where none did.
func probe(index int, addr netip.Addr, before bool) (silent bool, at [6]byte, err error) {
	family := netlink.FAMILY_V4
	if addr.Is6() {
		family = netlink.FAMILY_V6
	}
	list, err := netlink.NeighList(index, family)
	if err != nil {
		return before, at, fmt.Errorf("list neighbours: %w", err)
	}
	ask := netlink.Neigh{LinkIndex: index, Family: family, IP: addr.AsSlice(), State: unix.NUD_NONE, Flags: netlink.NTF_USE}
	for _, n := range list {
		if have, ok := netip.AddrFromSlice(n.IP); !ok || have.Unmap() != addr {
			continue
		}
		if len(n.HardwareAddr) == 6 && n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) == 0 {
			at = [6]byte(n.HardwareAddr)
		}
		switch {
		case n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0:
			return false, at, nil // somebody said so: it is never asked
		case n.State&(unix.NUD_PROBE|unix.NUD_INCOMPLETE) != 0:
			return before, at, nil
		case n.State&unix.NUD_FAILED != 0:
			silent = true
		case at != [6]byte{}:
			ask.State, ask.Flags, ask.HardwareAddr = unix.NUD_PROBE, 0, n.HardwareAddr
		}
	}
	if err := netlink.NeighSet(&ask); err != nil {
		return silent, at, fmt.Errorf("ask neighbour %s: %w", addr, err)
	}
	return silent, at, nil
}
