// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"path/filepath"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/bgp"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/wireguard"
)

// noteBGP is called with what the node's BGP process should do. Where that is nothing and no
// process is there, what one left behind that was removed too soon is removed here.
func (a *Agent) noteBGP(s *nodestate.BGP) {
	a.bgp.Set(a.before.Sessions(s))
	if s == nil && a.bgp.Status() == nil {
		go func() {
			if err := fib.Remove(); err != nil {
				a.log.Warn("routes that a BGP process learned are left", "error", err)
			}
		}()
	}
}

// state is what the node should have; nil = that is not known yet.
func (c *cluster) state() *nodestate.State { return c.snapshot().state }

// bgpPeers are the BGPPeers that there are.
func (c *cluster) bgpPeers(ctx context.Context) (out map[string]v3.BGPPeerType, err error) {
	err = c.look(ctx, func(m *model.Cluster) { out = bgp.PeerTypes(m) })
	return out, err
}

// openWireGuard has states encrypted before they are applied. It is called before the cluster's
// goroutine and the loop run.
func (a *Agent) openWireGuard() {
	log := a.log.With("part", "wireguard")
	a.wireguard = wireguard.New(wireguard.Options{Log: log, StateDir: a.opts.StateDir, RunDir: a.opts.RunDir, Ready: a.noteOwnKeys})
	a.loop.Before, a.loop.After = a.wireguard.Before, a.wireguard.After
	file := statefile.New[map[string]model.KnownWireGuard](filepath.Join(wireguard.Folder(a.opts.StateDir), "known.json"), log)
	l := &a.cluster.model.Local.WireGuard
	l.Own, l.Known = wireguard.OwnKeys(a.opts.StateDir), file.Load()
	a.cluster.saveWireGuard = func(known map[string]model.KnownWireGuard) {
		_ = file.Save(known) // it says once what fails
	}
}

// runWireGuard looks after devices and routes until ctx ends.
func (a *Agent) runWireGuard(ctx context.Context) error {
	return a.wireguard.Run(ctx, func() uint16 { return a.cluster.snapshot().config.Settings.VXLANPort })
}

// noteOwnKeys is called when a device of this node is ready for peers, or has another key.
func (a *Agent) noteOwnKeys(keys model.WireGuardKeys) {
	a.cluster.later(func() {
		a.cluster.model.Local.WireGuard.Own = keys
		a.cluster.dirty.Add(model.KindLocal)
	})
}

// noteWireGuard remembers the keys of the nodes for which this one encrypts: it does so from then
// on, whatever becomes of the objects that say them. Who switches WireGuard off, or replaces a
// node, has that forgotten.
func (c *cluster) noteWireGuard(s *nodestate.State) {
	before := c.model.Local.WireGuard.Known
	known := map[string]model.KnownWireGuard{}
	for i, w := range []*nodestate.WireGuard{&s.WireGuard4, &s.WireGuard6} {
		if !w.On() {
			continue
		}
		for name, k := range before {
			if n := c.model.Nodes[name]; n != nil && n.UID == k.UID {
				if _, is := known[name]; !is {
					known[name] = k
				}
			}
		}
		for _, p := range w.Peers {
			if p.Key == (model.WireGuardKey{}) {
				continue
			}
			k := known[p.Node]
			if k.UID != p.UID {
				k = model.KnownWireGuard{UID: p.UID}
			}
			k.Keys = k.Keys.With(i == 1, p.Key)
			known[p.Node] = k
		}
	}
	if !maps.Equal(before, known) {
		c.model.Local.WireGuard.Known = known
		c.saveWireGuard(known)
	}
}

// maxClear bounds the nodes that a status names.
const maxClear = 100

func wireGuardStatus(s *wireguard.Status) *weirv1.WireGuardStatus {
	if s == nil {
		return nil
	}
	return &weirv1.WireGuardStatus{PublicKey: s.Keys.IPv4.String(), PublicKeyIPv6: s.Keys.IPv6.String(), Implementation: s.By,
		NextPublicKey: s.Next.IPv4.String(), NextPublicKeyIPv6: s.Next.IPv6.String(),
		Peers: int32(s.Peers), Clear: s.Clear[:min(len(s.Clear), maxClear)]}
}

// noIPIP reports whether other nodes are to send this one VXLAN in the place of IP in IP: its data
// plane cannot take that, or the one that is about to carry packets. Until a data plane has applied
// a state, what was published last counts: nodes change to VXLAN and back at no agent's start.
func (a *Agent) noIPIP(snap snapshot) bool {
	if a.loop.Applied() == 0 {
		return snap.noIPIP
	}
	return a.nextLacksIPIP.Load() || a.driver.Status().NoIPIP != ""
}

// egressGateways is what the node says of egress gateways. Other nodes send what leaves by them
// here while there is something; until a data plane has applied a state, what was published last
// counts.
func (a *Agent) egressGateways(snap snapshot) *weirv1.EgressGatewaysStatus {
	if a.loop.Applied() == 0 && !snap.leadsOut {
		return nil
	}
	return problems.EgressGateways(snap.state)
}

// announceNoIPIP tells other nodes that the data plane nftables, which is about to take eBPF's
// place, cannot take IP in IP, and waits until they have read of it. The one in force takes both.
func (a *Agent) announceNoIPIP(ctx context.Context, to nftablesPlane) {
	s := a.cluster.snapshot().state
	if s == nil || !errors.Is(to.LooksForIPIP(s), hostnet.ErrNoIPIP) {
		return
	}
	a.log.Info("the kernel has no device of IP in IP: other nodes are told to send VXLAN before the data plane changes")
	a.nextLacksIPIP.Store(true)
	a.reportSwitch(ctx)
	_ = sleep.For(ctx, nextKnownWithin)
}
