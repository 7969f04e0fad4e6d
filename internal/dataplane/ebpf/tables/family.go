// SPDX-License-Identifier: Apache-2.0

package tables

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
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/services"
	"github.com/weir-net/weir/internal/nodestate"
)

// familyTables are the maps of one family.
type familyTables[A abi.Address] struct {
	addrs     *maptable.Table[A, abi.AddrValue[A]]
	staged    *maptable.Table[A, abi.WeirStagedValue]
	routes    *maptable.Table[abi.PrefixKey[A], abi.RouteValue[A]]
	peers     *maptable.Table[A, uint64]
	peerCIDRs *maptable.Table[abi.PrefixKey[A], uint64]
	clients   *maptable.Table[uint64, A]
	links     *maptable.Table[abi.WeirLinkKey, A]
	services  *services.Tables[A]
	ranges    *maptable.Table[abi.RangeKey[A], uint8]
	dsrOptOut *maptable.Table[abi.PrefixKey[A], uint8]
	announced *maptable.Table[A, uint8]
	egress    *egressTables[A]
	sources   *maptable.Table[abi.SourceKey[A], A]
	floating  *maptable.Table[A, A]
	uplinks   *maptable.Table[uint32, abi.WeirLinkKey]

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
	t.addrs = maptable.New[A, abi.AddrValue[A]]("weir_addrs", m["weir_addrs"], abi.ShowAddr[A], &c.reevaluated)
	t.staged = maptable.New[A, abi.WeirStagedValue]("weir_staged", m["weir_staged"], abi.ShowAddr[A], &c.quiet)
	t.routes = maptable.New[abi.PrefixKey[A], abi.RouteValue[A]]("weir_routes", m["weir_routes"], abi.ShowPrefix[A], &c.reevaluated)
	t.peers = maptable.New[A, uint64]("weir_peers", m["weir_peers"], abi.ShowAddr[A], &c.reevaluated)
	t.peerCIDRs = maptable.New[abi.PrefixKey[A], uint64]("weir_peer_cidrs", m["weir_peer_cidrs"], abi.ShowPrefix[A], &c.reevaluated)
	t.clients = maptable.New[uint64, A]("weir_clients", m["weir_clients"], abi.ShowCookie, &c.quiet)
	t.links = maptable.New[abi.WeirLinkKey, A]("weir_links", m["weir_links"], abi.ShowLink, &c.reevaluated)
	t.ranges = maptable.New[abi.RangeKey[A], uint8]("weir_ranges", m["weir_ranges"], abi.ShowRange[A], &c.quiet)
	t.services = services.New[A](m, &c.reevaluated)
	t.peers.Tracker.CountValues()
	t.peerCIDRs.Tracker.CountValues()
	t.dsrOptOut = maptable.New[abi.PrefixKey[A], uint8]("weir_dsr_optout", m["weir_dsr_optout"], abi.ShowPrefix[A], &c.quiet)
	t.announced = maptable.New[A, uint8]("weir_announced", m["weir_announced"], abi.ShowAddr[A], &c.quiet)
	t.egress = newEgress[A](m, c)
	t.sources = maptable.New[abi.SourceKey[A], A]("weir_sources", m["weir_sources"], abi.ShowSource[A], &c.reevaluated)
	t.floating = maptable.New[A, A]("weir_floating", m["weir_floating"], abi.ShowAddr[A], &c.reevaluated)
	t.uplinks = maptable.New[uint32, abi.WeirLinkKey]("weir_uplinks", m["weir_uplinks"], func(i uint32) string { return fmt.Sprint("interface ", i) }, &c.quiet)
	return t
}

// Load implements Family.
func (t *familyTables[A]) Load() error {
	t.peersFresh, t.seenCIDRs = true, nil
	var zero uint32
	err := t.settings.Lookup(&zero, unsafe.Pointer(&t.current))
	return errors.Join(err, t.addrs.Load(), t.staged.Load(), t.routes.Load(), t.peers.Load(), t.peerCIDRs.Load(),
		t.clients.Load(), t.links.Load(), t.dsrOptOut.Load(), t.ranges.Load(), t.announced.Load(), t.uplinks.Load(), t.egress.load(), t.sources.Load(), t.floating.Load(), t.services.Load())
}

func (t *familyTables[A]) desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int) {
	if changed.Has(nodestate.TableSettings) {
		t.dsrOptOut.Desire(renderDSROptOut[A](s))
	}
	if changed.Has(nodestate.TableStaged) || changed.Has(nodestate.TableAddrs) {
		t.staged.Desire(renderStaged[A](s))
	}
	if changed.Has(nodestate.TableAddrs) || changed.Has(nodestate.TableStaged) || changed.Has(nodestate.TableQoS) || changed.Has(nodestate.TableNames) {
		t.addrs.Desire(renderAddrs[A](s, ifindex))
		t.links.Desire(maps.All(renderLinks[A](s)))
	}
	if changed.Has(nodestate.TableGateways) {
		t.egress.desire(s)
	}
	if changed.Has(nodestate.TableSources) || changed.Has(nodestate.TableAddrs) || len(s.Sources) > 0 && (changed.Has(nodestate.TableRoutes) || changed.Has(nodestate.TableSettings)) {
		t.sources.Desire(renderSources[A](s, ifindex))
	}
	if changed.Has(nodestate.TableFloating) {
		t.floating.Desire(renderFloating[A](s))
	}
	if changed.Has(nodestate.TableRoutes) {
		t.routes.Desire(renderRoutes[A](s))
	}
	if changed.Has(nodestate.TablePolicy) {
		t.desirePeers(s)
		t.desireCIDRs(s)
	}
	if changed.Has(nodestate.TableServices) {
		t.ranges.Desire(renderRanges[A](s))
		t.services.Desire(s)
	}
	if changed.Has(nodestate.TableAnnounced) {
		t.announced.Desire(renderAnnounced[A](s))
	}
	if changed.Has(nodestate.TableClients) {
		t.clients.Desire(renderClients[A](s))
	}
}

func (t *familyTables[A]) writeClasses() bool {
	t.peerCIDRs.Write(nil)
	t.peers.Write(nil)
	return t.peerCIDRs.Tracker.PendingWrites() == 0 && t.peers.Tracker.PendingWrites() == 0
}

func (t *familyTables[A]) writeEndpoints(ready func(ingress, egress uint64) error) (held bool) {
	t.staged.Write(nil)
	t.addrs.Write(func(_ A, v abi.AddrValue[A]) error { return ready(v.IngressSet, v.EgressSet) })
	for a, is := range t.addrs.Tracker.Writes() {
		if v, ok := t.addrs.Tracker.Actual(a); ok && v.Kind == endpointKind && !(is.Kind == v.Kind && v.SameSets(is)) {
			return true
		}
	}
	return false
}

// writeOthers writes addresses that no endpoint has or had.
func (t *familyTables[A]) writeOthers() {
	t.addrs.Write(func(a A, v abi.AddrValue[A]) error {
		if was, _ := t.addrs.Tracker.Actual(a); v.Kind == endpointKind || was.Kind == endpointKind {
			return errors.New("waits for policy")
		}
		return nil
	})
}

// removeEndpoints removes those that go. They come before any other change of policy: nothing is
// allowed by it.
func (t *familyTables[A]) removeEndpoints() {
	t.addrs.Remove(func(a A) error {
		if v, _ := t.addrs.Tracker.Actual(a); v.Kind != endpointKind {
			return maptable.ErrLater
		}
		return nil
	})
}

func (t *familyTables[A]) writeRoutes() {
	t.links.Write(nil)
	t.dsrOptOut.Write(nil)
	t.routes.Write(nil)
	t.sources.Write(nil)
	t.floating.Write(nil)
	t.egress.write()
}

func (t *familyTables[A]) writeServices() {
	t.ranges.Write(nil) // before the frontends that ask for them: one that is missing admits nobody
	t.services.Write()
	t.clients.Write(nil)
	t.uplinks.Write(nil)
	t.announced.Write(nil)
}

func (t *familyTables[A]) servicesPending() bool { return t.services.BackendsPending() }

func (t *familyTables[A]) removeServices() {
	t.announced.Remove(nil)
	t.uplinks.Remove(nil)
	t.clients.Remove(nil)
	lost := t.services.Lost()
	t.services.Remove()
	t.ranges.Remove(nil)
	var ended int
	ended, t.socketsErr = lost.EndSockets(t.sockets)
	t.counts.ended += uint64(ended)
}

func (t *familyTables[A]) removeEvaluated(held bool) (left bool) {
	t.routes.Remove(nil)
	t.sources.Remove(nil)
	t.floating.Remove(nil)
	t.egress.remove()
	t.dsrOptOut.Remove(nil)
	t.links.Remove(nil)
	t.addrs.Remove(nil)
	t.staged.Remove(nil)
	if held {
		return true
	}
	t.peers.Remove(nil)
	t.peerCIDRs.Remove(nil)
	return t.peers.Pending() || t.peerCIDRs.Pending()
}

// pending reports whether anything is to be written or removed on which flows that are open depend.
func (t *familyTables[A]) pending() bool {
	return t.addrs.Pending() || t.routes.Pending() || t.sources.Pending() || t.floating.Pending() || t.egress.pending() || t.peers.Pending() || t.peerCIDRs.Pending() || t.links.Pending() || t.services.Pending()
}

func (t *familyTables[A]) errors() []error {
	var settings []error
	if t.settingsErr != nil {
		settings = append(settings, &dataplane.KeyError{Table: "weir_settings", Key: "settings", Err: t.settingsErr})
	}
	if t.socketsErr != nil {
		settings = append(settings, &dataplane.KeyError{Table: "sockets", Key: "udp", Err: t.socketsErr})
	}
	return slices.Concat(settings, t.addrs.Errors(), t.staged.Errors(), t.routes.Errors(), t.peers.Errors(), t.peerCIDRs.Errors(),
		t.clients.Errors(), t.links.Errors(), t.dsrOptOut.Errors(), t.ranges.Errors(), t.announced.Errors(), t.uplinks.Errors(), t.egress.errors(), t.sources.Errors(), t.floating.Errors(), t.services.Errors())
}

// Entries implements Family.
func (t *familyTables[A]) Entries() map[string]int {
	frontends, backends := t.services.Entries()
	return map[string]int{
		"addrs": t.addrs.Tracker.Len(), "routes": t.routes.Tracker.Len(), "services": frontends,
		"backends": backends, "peers": t.peers.Tracker.Len(), "peer_cidrs": t.peerCIDRs.Tracker.Len(),
		"clients": t.clients.Tracker.Len(), "announced": t.announced.Tracker.Len(),
	}
}

func (t *familyTables[A]) endpoint(a netip.Addr) (int, bool) {
	if !abi.Carries[A](a) {
		return 0, false
	}
	v, _ := t.addrs.Tracker.Actual(abi.ToAddr[A](a))
	return int(v.Ifindex), true
}
