package ebpf

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
)

// tables are all maps that a state is written to, without anything that is attached.
type tables struct {
	addrs     *table[weirIpAddr, weirAddrValue]
	routes    *table[weirPrefixKey, weirRouteValue]
	peers     *table[weirIpAddr, uint64]
	peerCIDRs *table[weirPrefixKey, uint64]
	policy    *table[weirPolicyKey, weirPolicyValue]
	clients   *table[uint64, weirIpAddr]
	links     *table[weirLinkKey, weirIpAddr]
	services  *services
	dsrOptOut *table[weirPrefixKey, uint8]
	ports     *ports

	settings    *ebpf.Map
	current     weirSettings // what the map holds
	settingsErr error

	judged uint64 // writes that may change what becomes of an existing flow
	quiet  uint64 // other writes
	epochs uint64 // writes of the epoch alone
}

func newTables(m map[string]*ebpf.Map) *tables {
	t := &tables{settings: m["weir_settings"]}
	t.addrs = newTable[weirIpAddr, weirAddrValue]("weir_addrs", m["weir_addrs"], showAddr, &t.judged)
	t.routes = newTable[weirPrefixKey, weirRouteValue]("weir_routes", m["weir_routes"], showPrefix, &t.judged)
	t.peers = newTable[weirIpAddr, uint64]("weir_peers", m["weir_peers"], showAddr, &t.judged)
	t.peerCIDRs = newTable[weirPrefixKey, uint64]("weir_peer_cidrs", m["weir_peer_cidrs"], showPrefix, &t.judged)
	t.policy = newTable[weirPolicyKey, weirPolicyValue]("weir_policy", m["weir_policy"], showPolicy, &t.judged)
	t.clients = newTable[uint64, weirIpAddr]("weir_clients", m["weir_clients"], showCookie, &t.quiet)
	t.links = newTable[weirLinkKey, weirIpAddr]("weir_links", m["weir_links"], showLink, &t.judged)
	t.services = newServices(m, &t.judged)
	t.dsrOptOut = newTable[weirPrefixKey, uint8]("weir_dsr_optout", m["weir_dsr_optout"], showPrefix, &t.quiet)
	t.ports = newPorts(m["weir_ports"], &t.quiet)
	return t
}

// load reads what the maps hold.
func (t *tables) load() error {
	var zero uint32
	err := t.settings.Lookup(&zero, &t.current)
	return errors.Join(err, t.addrs.load(), t.routes.load(), t.peers.load(), t.peerCIDRs.load(), t.policy.load(),
		t.clients.load(), t.links.load(), t.dsrOptOut.load(), t.services.load(), t.ports.load())
}

// desire sets what the maps should hold, for the tables that may have changed.
func (t *tables) desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int) {
	if changed.Has(nodestate.TableSettings) {
		t.dsrOptOut.desire(renderDSROptOut(s))
	}
	if changed.Has(nodestate.TableAddrs) {
		t.addrs.desire(renderAddrs(s, ifindex))
		t.links.desire(maps.All(renderLinks(s)))
	}
	if changed.Has(nodestate.TableRoutes) {
		t.routes.desire(renderRoutes(s))
	}
	if changed.Has(nodestate.TablePolicy) {
		t.peers.desire(renderPeers(s))
		t.peerCIDRs.desire(renderPeerCIDRs(s))
		t.policy.desire(renderPolicy(s))
	}
	if changed.Has(nodestate.TableServices) {
		t.services.desire(s)
	}
	if changed.Has(nodestate.TableServices) || changed.Has(nodestate.TableAddrs) {
		t.ports.desire(s)
	}
	if changed.Has(nodestate.TableClients) {
		t.clients.desire(renderClients(s))
	}
}

// write makes all pending writes, in an order in which no packet is allowed that both the state before
// and the state after deny: verdicts before the classes that lead to them, both before the endpoints
// that are isolated by them. Entries by port come before the heads that point to them.
func (t *tables) write() {
	t.policy.write(func(k weirPolicyKey, _ weirPolicyValue) error {
		if k.Head != 0 {
			return errLater
		}
		return nil
	})
	t.policy.write(nil)
	t.peerCIDRs.write(nil)
	t.peers.write(nil)
	t.addrs.write(func(_ weirIpAddr, v weirAddrValue) error { return t.verdictsReady(v) })
	t.links.write(nil)
	t.dsrOptOut.write(nil)
	t.routes.write(nil)
	t.ports.grow()
	t.services.write()
	t.clients.write(nil)
}

var errLater = errors.New("not written yet")

// verdictsReady holds back an endpoint's isolation while part of its policy set could not be written:
// the endpoint keeps what it had, and a new endpoint stays unreachable, rather than be judged by half a set.
func (t *tables) verdictsReady(v weirAddrValue) error {
	if v.IngressSet == 0 && v.EgressSet == 0 {
		return nil
	}
	for k, err := range t.policy.tracker.Failures() {
		if k.Set == v.IngressSet || k.Set == v.EgressSet {
			return errors.Join(errors.New("waits for its policy"), err)
		}
	}
	return nil
}

// grace is how long a program that has read a count may take to look its slot up.
const grace = time.Millisecond

// remove makes all pending deletes, in the opposite order of write.
func (t *tables) remove() {
	t.clients.remove(nil)
	if t.services.backends.pending() {
		time.Sleep(grace)
	}
	t.services.remove()
	t.ports.settle()
	t.routes.remove(nil)
	t.links.remove(nil)
	t.dsrOptOut.remove(nil)
	t.addrs.remove(nil)
	t.peers.remove(nil)
	t.peerCIDRs.remove(nil)
	t.policy.remove(nil)
}

// writeSettings makes the settings equal to v; the epoch stays. Returns whether something was written.
func (t *tables) writeSettings(v weirSettings) {
	v.Epoch = t.current.Epoch
	if v == t.current {
		t.settingsErr = nil
		return
	}
	if t.settingsErr = t.putSettings(v); t.settingsErr == nil {
		t.judged++
	}
}

// nextEpoch makes every flow judge itself again.
func (t *tables) nextEpoch() error {
	v := t.current
	v.Epoch++
	if err := t.putSettings(v); err != nil {
		return &dataplane.KeyError{Table: "weir_settings", Key: "epoch", Err: err}
	}
	t.epochs++
	return nil
}

func (t *tables) putSettings(v weirSettings) error {
	var zero uint32
	if err := t.settings.Update(&zero, &v, ebpf.UpdateAny); err != nil {
		return err
	}
	t.current = v
	return nil
}

// errors returns what could not be written.
func (t *tables) errors() []error {
	var settings []error
	if t.settingsErr != nil {
		settings = append(settings, &dataplane.KeyError{Table: "weir_settings", Key: "settings", Err: t.settingsErr})
	}
	if t.ports.err != nil {
		settings = append(settings, t.ports.err)
	}
	return slices.Concat(settings, t.addrs.errors(), t.routes.errors(), t.peers.errors(), t.peerCIDRs.errors(),
		t.policy.errors(), t.clients.errors(), t.links.errors(), t.dsrOptOut.errors(), t.services.errors())
}
