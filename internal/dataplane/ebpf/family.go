// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// familyTables are the maps of one family.
type familyTables[A abi.Address] struct {
	addrs     *table[A, abi.AddrValue[A]]
	staged    *table[A, abi.WeirStagedValue]
	routes    *table[abi.PrefixKey[A], abi.RouteValue[A]]
	peers     *table[A, uint64]
	peerCIDRs *table[abi.PrefixKey[A], uint64]
	clients   *table[uint64, A]
	links     *table[abi.WeirLinkKey, A]
	services  *services[A]
	ranges    *table[abi.RangeKey[A], uint8]
	dsrOptOut *table[abi.PrefixKey[A], uint8]
	announced *table[A, uint8]
	uplinks   *table[uint32, abi.WeirLinkKey]

	peersFresh bool // peers were read from the map and not compared with a state yet
	seenPeers  nodestate.Map[netip.Addr, nodestate.Class]
	seenCIDRs  map[netip.Prefix]nodestate.Class // that was desired last; nil = nothing since the map was read

	dsrFallbackMap *ebpf.Map
	sockets        *ebpf.Map
	socketsErr     error

	flows, flowsNew, affinity *ebpf.Map

	settings    *ebpf.Map
	current     abi.Settings[A] // what the map holds
	settingsErr error
	counts      *counts
}

func newFamily[A abi.Address](m map[string]*ebpf.Map, c *counts) *familyTables[A] {
	t := &familyTables[A]{settings: m["weir_settings"], sockets: m["weir_sockets"], dsrFallbackMap: m["weir_dsr_fallen"],
		flows: m["weir_flows"], flowsNew: m["weir_flows_new"], affinity: m["weir_affinity"], counts: c}
	t.addrs = newTable[A, abi.AddrValue[A]]("weir_addrs", m["weir_addrs"], abi.ShowAddr[A], &c.reevaluated)
	t.staged = newTable[A, abi.WeirStagedValue]("weir_staged", m["weir_staged"], abi.ShowAddr[A], &c.quiet)
	t.routes = newTable[abi.PrefixKey[A], abi.RouteValue[A]]("weir_routes", m["weir_routes"], abi.ShowPrefix[A], &c.reevaluated)
	t.peers = newTable[A, uint64]("weir_peers", m["weir_peers"], abi.ShowAddr[A], &c.reevaluated)
	t.peerCIDRs = newTable[abi.PrefixKey[A], uint64]("weir_peer_cidrs", m["weir_peer_cidrs"], abi.ShowPrefix[A], &c.reevaluated)
	t.clients = newTable[uint64, A]("weir_clients", m["weir_clients"], abi.ShowCookie, &c.quiet)
	t.links = newTable[abi.WeirLinkKey, A]("weir_links", m["weir_links"], abi.ShowLink, &c.reevaluated)
	t.ranges = newTable[abi.RangeKey[A], uint8]("weir_ranges", m["weir_ranges"], abi.ShowRange[A], &c.quiet)
	t.services = newServices[A](m, &c.reevaluated)
	t.peers.tracker.CountValues()
	t.peerCIDRs.tracker.CountValues()
	t.dsrOptOut = newTable[abi.PrefixKey[A], uint8]("weir_dsr_optout", m["weir_dsr_optout"], abi.ShowPrefix[A], &c.quiet)
	t.announced = newTable[A, uint8]("weir_announced", m["weir_announced"], abi.ShowAddr[A], &c.quiet)
	t.uplinks = newTable[uint32, abi.WeirLinkKey]("weir_uplinks", m["weir_uplinks"], func(i uint32) string { return fmt.Sprint("interface ", i) }, &c.quiet)
	return t
}

func (t *familyTables[A]) load() error {
	t.peersFresh, t.seenCIDRs = true, nil
	var zero uint32
	err := t.settings.Lookup(&zero, unsafe.Pointer(&t.current))
	return errors.Join(err, t.addrs.load(), t.staged.load(), t.routes.load(), t.peers.load(), t.peerCIDRs.load(),
		t.clients.load(), t.links.load(), t.dsrOptOut.load(), t.ranges.load(), t.announced.load(), t.uplinks.load(), t.services.load())
}

func (t *familyTables[A]) desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int) {
	if changed.Has(nodestate.TableSettings) {
		t.dsrOptOut.desire(renderDSROptOut[A](s))
	}
	if changed.Has(nodestate.TableStaged) || changed.Has(nodestate.TableAddrs) {
		t.staged.desire(renderStaged[A](s))
	}
	if changed.Has(nodestate.TableAddrs) || changed.Has(nodestate.TableStaged) {
		t.addrs.desire(renderAddrs[A](s, ifindex))
		t.links.desire(maps.All(renderLinks[A](s)))
	}
	if changed.Has(nodestate.TableRoutes) {
		t.routes.desire(renderRoutes[A](s))
	}
	if changed.Has(nodestate.TablePolicy) {
		t.desirePeers(s)
		t.desireCIDRs(s)
	}
	if changed.Has(nodestate.TableServices) {
		t.ranges.desire(renderRanges[A](s))
		t.services.desire(s)
	}
	if changed.Has(nodestate.TableAnnounced) {
		t.announced.desire(renderAnnounced[A](s))
	}
	if changed.Has(nodestate.TableClients) {
		t.clients.desire(renderClients[A](s))
	}
}

func (t *familyTables[A]) writeClasses() bool {
	t.peerCIDRs.write(nil)
	t.peers.write(nil)
	return t.peerCIDRs.tracker.PendingWrites() == 0 && t.peers.tracker.PendingWrites() == 0
}

func (t *familyTables[A]) writeEndpoints(ready func(ingress, egress uint64) error) (held bool) {
	t.staged.write(nil)
	t.addrs.write(func(_ A, v abi.AddrValue[A]) error { return ready(v.IngressSet, v.EgressSet) })
	for a, is := range t.addrs.tracker.Writes() {
		if v, ok := t.addrs.tracker.Actual(a); ok && v.Kind == endpointKind && !(is.Kind == v.Kind && v.SameSets(is)) {
			return true
		}
	}
	return false
}

// writeOthers writes addresses that no endpoint has or had.
func (t *familyTables[A]) writeOthers() {
	t.addrs.write(func(a A, v abi.AddrValue[A]) error {
		if was, _ := t.addrs.tracker.Actual(a); v.Kind == endpointKind || was.Kind == endpointKind {
			return errors.New("waits for policy")
		}
		return nil
	})
}

// removeEndpoints removes those that go. They come before any other change of policy: nothing is
// allowed by it.
func (t *familyTables[A]) removeEndpoints() {
	t.addrs.remove(func(a A) error {
		if v, _ := t.addrs.tracker.Actual(a); v.Kind != endpointKind {
			return errLater
		}
		return nil
	})
}

func (t *familyTables[A]) writeRoutes() {
	t.links.write(nil)
	t.dsrOptOut.write(nil)
	t.routes.write(nil)
}

func (t *familyTables[A]) writeServices() {
	t.ranges.write(nil) // before the frontends that ask for them: one that is missing admits nobody
	t.services.write()
	t.clients.write(nil)
	t.uplinks.write(nil)
	t.announced.write(nil)
}

func (t *familyTables[A]) servicesPending() bool { return t.services.backendsPending() }

func (t *familyTables[A]) removeServices() {
	t.announced.remove(nil)
	t.uplinks.remove(nil)
	t.clients.remove(nil)
	lost := t.services.lost()
	t.services.remove()
	t.ranges.remove(nil)
	var ended int
	ended, t.socketsErr = lost.endSockets(t.sockets)
	t.counts.ended += uint64(ended)
}

func (t *familyTables[A]) removeEvaluated(held bool) (left bool) {
	t.routes.remove(nil)
	t.dsrOptOut.remove(nil)
	t.links.remove(nil)
	t.addrs.remove(nil)
	t.staged.remove(nil)
	if held {
		return true
	}
	t.peers.remove(nil)
	t.peerCIDRs.remove(nil)
	return t.peers.pending() || t.peerCIDRs.pending()
}

// pending reports whether anything is to be written or removed on which flows that are open depend.
func (t *familyTables[A]) pending() bool {
	return t.addrs.pending() || t.routes.pending() || t.peers.pending() || t.peerCIDRs.pending() || t.links.pending() || t.services.pending()
}

func (t *familyTables[A]) errors() []error {
	var settings []error
	if t.settingsErr != nil {
		settings = append(settings, &dataplane.KeyError{Table: "weir_settings", Key: "settings", Err: t.settingsErr})
	}
	if t.socketsErr != nil {
		settings = append(settings, &dataplane.KeyError{Table: "sockets", Key: "udp", Err: t.socketsErr})
	}
	return slices.Concat(settings, t.addrs.errors(), t.staged.errors(), t.routes.errors(), t.peers.errors(), t.peerCIDRs.errors(),
		t.clients.errors(), t.links.errors(), t.dsrOptOut.errors(), t.ranges.errors(), t.announced.errors(), t.uplinks.errors(), t.services.errors())
}

func (t *familyTables[A]) entries() map[string]int {
	frontends, backends := t.services.entries()
	return map[string]int{
		"addrs": t.addrs.tracker.Len(), "routes": t.routes.tracker.Len(), "services": frontends,
		"backends": backends, "peers": t.peers.tracker.Len(), "peer_cidrs": t.peerCIDRs.tracker.Len(),
		"clients": t.clients.tracker.Len(), "announced": t.announced.tracker.Len(),
	}
}

func (t *familyTables[A]) endpoint(a netip.Addr) (int, bool) {
	if !abi.Carries[A](a) {
		return 0, false
	}
	v, _ := t.addrs.tracker.Actual(abi.ToAddr[A](a))
	return int(v.Ifindex), true
}
