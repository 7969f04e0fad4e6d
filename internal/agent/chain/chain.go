// SPDX-License-Identifier: Apache-2.0

// Package chain finds the interfaces of pods that another CNI plugin made (CNI chaining). It
// follows the links of this network namespace and the host routes of its main table, which that
// plugin writes: a pod's interface is the one that the route to its address leads to. Interfaces
// that lead to no pod that is known are held: nothing passes them. A further interface of a pod, by
// which Amazon's egress-cni gives it the other IP family, is found by the pod's network namespace.
package chain

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// refreshEvery bounds how long a change is missed whose notice was lost, and after how long it is
// tried again to read an interface's other end.
const refreshEvery = 10 * time.Second

// Watcher follows links and host routes. Its methods may be called by several goroutines.
type Watcher struct {
	log *slog.Logger

	mu     sync.Mutex
	links  map[int]link
	routes map[netip.Addr]int // the interface that the route to one address leads to
}

// link is an interface that may be a pod's.
type link struct {
	name string
	peer int // index of the other end
	nsid int // of the network namespace with the other end, as this one numbers it; negative = none
	mac  [6]byte
	read bool // mac is that of the other end
}

// New reads links and routes once.
func New(log *slog.Logger) (*Watcher, error) {
	w := &Watcher{log: log}
	_, err := w.Read()
	return w, err
}

// Run follows what changes until ctx ends, and calls changed after each change.
func (w *Watcher) Run(ctx context.Context, changed func()) error {
	var n *kernel.Notices
	defer func() { n.Close() }()
	refresh := time.NewTicker(refreshEvery)
	defer refresh.Stop()
	for {
		if n == nil { // at first, or after notices were lost
			var err error
			if n, err = kernel.Subscribe(); err != nil {
				return err
			}
			if err := w.refresh(changed); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-n.Links:
			switch {
			case !ok:
				n.Close()
				n = nil
			case w.noteLink(u):
				changed()
			}
		case u, ok := <-n.Routes:
			switch {
			case !ok:
				n.Close()
				n = nil
			case w.noteRoute(u):
				changed()
			}
		case <-refresh.C:
			if err := w.refresh(changed); err != nil {
				w.log.Error("reading links and routes of pods; going on with what is known", "error", err)
			}
		}
	}
}

func (w *Watcher) refresh(changed func()) error {
	different, err := w.Read()
	if different {
		changed()
	}
	return err
}

// Read reads links and routes, whose notices may come later, and reports whether something is
// different from what was known.
func (w *Watcher) Read() (bool, error) {
	list, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return false, fmt.Errorf("listing interfaces: %w", err)
	}
	routes := map[netip.Addr]int{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		some, err := kernel.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return false, fmt.Errorf("listing routes: %w", err)
		}
		for i := range some {
			if a, ok := leadsTo(&some[i]); ok {
				routes[a] = some[i].LinkIndex
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	links := map[int]link{}
	different := len(routes) != len(w.routes)
	for _, l := range list {
		index := l.Attrs().Index
		next, fresh := w.linkOf(l)
		links[index] = next
		different = different || fresh
	}
	different = different || len(links) != len(w.links)
	for a, index := range routes {
		different = different || w.routes[a] != index
	}
	w.links, w.routes = links, routes
	return different, nil
}

// linkOf returns what is kept of a link, and whether it is other than before. What was read of the
// other end is kept: Find reads it when it is needed.
func (w *Watcher) linkOf(l netlink.Link) (now link, different bool) {
	at := l.Attrs()
	now = link{name: at.Name, peer: at.ParentIndex, nsid: at.NetNsID}
	was, known := w.links[at.Index]
	if known && was.name == now.name && was.peer == now.peer && was.nsid == now.nsid {
		now.mac, now.read = was.mac, was.read
		return now, false
	}
	return now, true
}

// leadsTo returns the address of a route to one machine on an interface's link.
func leadsTo(r *netlink.Route) (netip.Addr, bool) {
	if r.Dst == nil || r.Table != unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST || r.LinkIndex == 0 || len(r.Gw) > 0 || r.Via != nil {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	if ones, bits := r.Dst.Mask.Size(); !ok || ones != bits || bits == 0 {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// noteLink reports whether a link came, went or is another one.
func (w *Watcher) noteLink(u netlink.LinkUpdate) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	index := u.Link.Attrs().Index
	if u.Header.Type == unix.RTM_DELLINK {
		_, known := w.links[index]
		delete(w.links, index)
		return known
	}
	now, different := w.linkOf(u.Link)
	w.links[index] = now
	return different
}

// noteRoute reports whether a route to one machine came, went or leads elsewhere.
func (w *Watcher) noteRoute(u netlink.RouteUpdate) bool {
	a, ok := leadsTo(&u.Route)
	if !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	was, known := w.routes[a]
	if u.Type == unix.RTM_DELROUTE {
		if !known || was != u.LinkIndex {
			return false
		}
		delete(w.routes, a)
		return true
	}
	w.routes[a] = u.LinkIndex
	return was != u.LinkIndex
}

// Found are the interfaces of pods.
type Found struct {
	Endpoints map[netip.Addr]*model.LocalEndpoint
	Held      map[int]string // interfaces that lead to no pod that is known, by index: names
}

// Leads reports whether a host route leads to an address.
func (w *Watcher) Leads(a netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, led := w.routes[a]
	return led
}

// Find returns the interfaces whose names begin with prefix: those to whose addresses pods has a
// pod, and the others. Whatever their names, interfaces of egress-cni belong to those whose other
// ends are in the same network namespace.
func (w *Watcher) Find(prefix string, pods map[netip.Addr]model.Name) Found {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := Found{Endpoints: map[netip.Addr]*model.LocalEndpoint{}, Held: map[int]string{}}
	for index, l := range w.links {
		if isPods(l.name, prefix) {
			out.Held[index] = l.name
		}
	}
	type owner struct {
		pod   model.Name
		index int
	}
	made, in := map[owner]*model.LocalEndpoint{}, map[int]model.Name{} // by network namespace
	add := func(pod model.Name, a netip.Addr, index int, l *link) {
		if !w.otherEnd(index, l) {
			return
		}
		ep := made[owner{pod, index}]
		if ep == nil {
			ep = &model.LocalEndpoint{Pod: pod, Interface: l.name, IfIndex: index, MAC: l.mac}
			made[owner{pod, index}] = ep
		}
		ep.Addrs = append(ep.Addrs, a)
		out.Endpoints[a] = ep
		delete(out.Held, index)
	}
	for a, pod := range pods {
		if l, index := w.to(a); isPods(l.name, prefix) {
			add(pod, a, index, &l)
			if l.nsid >= 0 {
				in[l.nsid] = pod
			}
		}
	}
	unknown := map[int]bool{} // network namespaces of pods that are not known
	for index := range out.Held {
		unknown[w.links[index].nsid] = true
	}
	for a := range w.routes {
		if !model.IsPerNode(a) || out.Endpoints[a] != nil {
			continue
		}
		l, index := w.to(a)
		pod, known := in[l.nsid]
		switch {
		case l.nsid < 0:
		case known:
			add(pod, a, index, &l)
		case unknown[l.nsid]:
			out.Held[index] = l.name
		}
	}
	for _, ep := range made {
		slices.SortFunc(ep.Addrs, netip.Addr.Compare)
	}
	return out
}

// to returns the interface that the route to an address leads to; one without a name = there is
// none.
func (w *Watcher) to(a netip.Addr) (link, int) {
	index, led := w.routes[a]
	l, there := w.links[index]
	if !led || !there {
		return link{nsid: -1}, 0
	}
	return l, index
}

// EndpointsOf returns the endpoint of a pod that has one of the addresses, and the pod's others
// that egress-cni made; none = there is none yet.
func EndpointsOf(endpoints map[netip.Addr]*model.LocalEndpoint, pod model.Name, addrs []netip.Addr) (out []*model.LocalEndpoint) {
	for _, a := range addrs {
		if ep := endpoints[a]; ep != nil && ep.Pod == pod {
			out = append(out, ep)
			break
		}
	}
	if len(out) == 0 {
		return nil
	}
	for a, ep := range endpoints {
		if model.IsPerNode(a) && ep.Pod == pod && !slices.Contains(out, ep) {
			out = append(out, ep)
		}
	}
	return out
}

func isPods(name, prefix string) bool { return prefix != "" && strings.HasPrefix(name, prefix) }

// otherEnd reads the MAC address of the pod's end of an interface, where it is not known yet, and
// reports whether it is.
func (w *Watcher) otherEnd(index int, l *link) bool {
	if l.read {
		return true
	}
	mac, err := kernel.PeerMAC(l.peer, l.nsid)
	if err != nil || len(mac) != 6 {
		w.log.Debug("the pod's end of an interface cannot be read yet", "interface", l.name, "error", err)
		return false
	}
	l.mac, l.read = [6]byte(mac), true
	w.links[index] = *l
	return true
}
