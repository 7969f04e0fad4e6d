package agent

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

	"github.com/weir-net/weir/internal/announce"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// local follows the machine's own addresses and links.
type local struct {
	log *slog.Logger

	mu         sync.Mutex
	links      []linkFact
	gateways   []netip.Addr
	neighbours map[netip.Addr][6]byte // link addresses as ARP and neighbour discovery found them
	isRead     bool
}

// linkFact is one interface with its addresses.
type linkFact struct {
	name     string
	index    int
	mtu      int
	mac      net.HardwareAddr
	loopback bool
	up       bool
	addrs    []netip.Prefix
}

func (l linkFact) equal(o linkFact) bool {
	return l.name == o.name && l.index == o.index && l.mtu == o.mtu && bytes.Equal(l.mac, o.mac) &&
		l.loopback == o.loopback && l.up == o.up && slices.Equal(l.addrs, o.addrs)
}

const (
	// localSettle is how long to wait after a change for others that belong to it.
	localSettle = 50 * time.Millisecond
	// localRefresh bounds how long a change is missed whose notice was lost.
	localRefresh = 30 * time.Second
)

// watchLocal reads the machine once.
func watchLocal(log *slog.Logger) (*local, error) {
	l := &local{log: log}
	_, err := l.read()
	return l, err
}

// run reads the machine again whenever addresses or links change, and calls changed when something is
// different.
func (l *local) run(ctx context.Context, changed func()) error {
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
	refresh := time.NewTicker(localRefresh)
	defer refresh.Stop()
	later := func() {
		if !pending {
			pending = true
			soon.Reset(localSettle)
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

// read reports whether something is different.
func (l *local) read() (bool, error) {
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
	var facts []linkFact
	for _, k := range links {
		at := k.Attrs()
		f := linkFact{
			name: at.Name, index: at.Index, mtu: at.MTU, mac: at.HardwareAddr,
			loopback: at.Flags&net.FlagLoopback != 0, up: at.Flags&net.FlagUp != 0, addrs: byLink[at.Index],
		}
		if at.Alias == "weir" || strings.HasPrefix(at.Alias, "weir:") {
			continue // our own devices, and pods'
		}
		slices.SortFunc(f.addrs, netip.Prefix.Compare)
		facts = append(facts, f)
	}
	slices.SortFunc(facts, func(a, b linkFact) int { return a.index - b.index })
	ours := map[int]bool{}
	for _, f := range facts {
		ours[f.index] = true
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
	if l.isRead && slices.EqualFunc(l.links, facts, linkFact.equal) && slices.Equal(l.gateways, routers) && maps.Equal(l.neighbours, neighbours) {
		return false, nil
	}
	l.links, l.gateways, l.neighbours, l.isRead = facts, routers, neighbours, true
	return true, nil
}

// machine is what a cluster's Local takes from the machine, and what others are told about it.
type machine struct {
	addrs   []netip.Addr
	subnets []netip.Prefix
	mtu     int
	mac     net.HardwareAddr // of the uplink that holds the node's address
	links   []model.LocalInterface
	missing []netip.Addr // addresses of the node that no interface holds

	gateways []netip.Addr
}

// excluded are interfaces whose addresses are not the node's: those of kube-proxy's IPVS mode are the
// Services' (interfaceExclude).
var excluded = map[string]bool{"kube-ipvs0": true}

// machine computes from what was read. Uplinks are those that isUplink says; node are the addresses by which
// others know the node, one a family at most. The link of the first that there is counts as the node's.
func (l *local) machine(node []netip.Addr, isUplink func(string) bool, podPrefix string) machine {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := machine{missing: slices.Clone(node), gateways: l.gateways}
	link := len(node) + 1 // how good the link is that m.mtu is of: smaller is better
	for _, f := range l.links {
		if excluded[f.name] || podPrefix != "" && strings.HasPrefix(f.name, podPrefix) && !isUplink(f.name) {
			continue
		}
		if !f.loopback {
			m.links = append(m.links, f.known())
		}
		rank := len(node) + 1
		if isUplink(f.name) && f.up {
			rank = len(node) // until the node's address is known or there
		}
		for _, p := range f.addrs {
			a := p.Addr()
			// Of IPv6's link-local ones each link has its own; those of IPv4 are as any other (NodeLocal DNSCache).
			if a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
				continue
			}
			m.addrs = append(m.addrs, a)
			if i := slices.Index(node, a); i >= 0 {
				rank = min(rank, i)
				m.missing = slices.DeleteFunc(m.missing, func(x netip.Addr) bool { return x == a })
			}
			if isUplink(f.name) && !f.loopback && p.Bits() < a.BitLen() && !a.IsLinkLocalUnicast() {
				m.subnets = append(m.subnets, p.Masked())
			}
		}
		if rank >= link {
			continue
		}
		m.mtu, m.mac, link = f.mtu, nil, rank
		if rank < len(node) {
			m.mac = f.mac
		}
	}
	slices.SortFunc(m.addrs, netip.Addr.Compare)
	m.addrs = slices.Compact(m.addrs)
	slices.SortFunc(m.subnets, netip.Prefix.Compare)
	m.subnets = slices.Compact(m.subnets)
	if len(m.mac) != 6 {
		m.mac = nil
	}
	return m
}

// known is the interface as the model has it.
func (l linkFact) known() model.LocalInterface {
	out := model.LocalInterface{Name: l.name, IfIndex: l.index}
	if len(l.mac) == 6 {
		out.MAC = [6]byte(l.mac)
	}
	for _, p := range l.addrs {
		out.Addrs = append(out.Addrs, p.Addr())
	}
	return out
}

// uplinks returns the uplinks that are up, with the subnets of their addresses.
func (l *local) uplinks(isUplink func(string) bool) []announce.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []announce.Link
	for _, f := range l.links {
		if !f.up || f.loopback || excluded[f.name] || !isUplink(f.name) {
			continue
		}
		link := announce.Link{Index: f.index, Name: f.name, MAC: f.mac}
		for _, p := range f.addrs {
			if a := p.Addr(); p.Bits() < a.BitLen() && !a.IsLinkLocalUnicast() {
				link.Subnets = append(link.Subnets, p.Masked())
			}
		}
		out = append(out, link)
	}
	return out
}
