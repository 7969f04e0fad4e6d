// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A node that changes its key publishes the next one some time before it has it. Other nodes then
// have a silent peer of that key: one without addresses, and with a preshared key that nobody
// knows. The first message of a handshake, which needs no preshared key, counts as received; the
// handshake cannot be completed. So what the node sends from its change on waits in its device
// until the others have seen that message and made the silent peer the one of the node's address;
// these begin a handshake of their own then, and what waits goes. What they send to the node
// meanwhile, by the session of before, the node still takes. No packet is lost, unless more than a
// device keeps waiting.

// plan is how the peers of a device become those that are wanted.
type plan struct {
	peers []wgtypes.PeerConfig
	begin []wgtypes.PeerConfig // their keep-alive as it is to be in the end
	// silent are the next keys of peers that have not been used yet.
	silent []wgtypes.Key
}

// wantedPeer is a peer of a device; without an address it is silent.
type wantedPeer struct {
	addr   netip.Addr // where its node is
	silent bool
}

// planPeers compares a device with what is wanted. Peers that are as they should be are left alone:
// their sessions go on.
func planPeers(have *wgtypes.Device, w *nodestate.WireGuard) (out plan, err error) {
	there := map[wgtypes.Key]*wgtypes.Peer{}
	for i := range have.Peers {
		there[have.Peers[i].PublicKey] = &have.Peers[i]
	}
	want, leave := map[wgtypes.Key]wantedPeer{}, map[wgtypes.Key]bool{}
	for a, p := range w.Peers {
		if p.Key == (model.WireGuardKey{}) {
			continue
		}
		use, next := wgtypes.Key(p.Key), wgtypes.Key(p.Next)
		switch {
		case p.Next == (model.WireGuardKey{}) || p.Next == p.Key:
		case hasMoved(there[next], a):
			// What comes by the session of before may still be on its way.
			use, leave[use] = next, true
		default:
			want[next] = wantedPeer{a, true}
			out.silent = append(out.silent, next)
		}
		want[use] = wantedPeer{addr: a}
	}
	keepAlive := time.Duration(w.KeepAlive) * time.Second
	for k, p := range there {
		wanted, ok := want[k]
		right := false
		switch {
		case !ok && leave[k]:
			continue
		case ok && wanted.silent:
			right = isSilent(p) && len(p.AllowedIPs) == 0
		case ok:
			right = isPeer(p, wanted.addr, w.Port) && p.PersistentKeepaliveInterval == keepAlive && !isSilent(p)
		}
		if right {
			delete(want, k)
			continue
		}
		if !ok || wanted.silent || isSilent(p) { // handshakes of a silent peer must not hold up those of the one in its place
			out.peers = append(out.peers, wgtypes.PeerConfig{PublicKey: k, Remove: true})
		}
	}
	first := time.Second
	for k, wanted := range want {
		p := wgtypes.PeerConfig{PublicKey: k, ReplaceAllowedIPs: true, Endpoint: &net.UDPAddr{IP: wanted.addr.AsSlice(), Port: int(w.Port)}}
		if wanted.silent {
			nobodys, err := wgtypes.GenerateKey()
			if err != nil {
				return out, fmt.Errorf("making a preshared key of WireGuard: %w", err)
			}
			p.PresharedKey = &nobodys
		} else {
			p.AllowedIPs, p.PersistentKeepaliveInterval = []net.IPNet{single(wanted.addr)}, &first
			out.begin = append(out.begin, wgtypes.PeerConfig{PublicKey: k, UpdateOnly: true, PersistentKeepaliveInterval: &keepAlive})
		}
		out.peers = append(out.peers, p)
	}
	return out, nil
}

// beginAnew has a device whose key changes begin handshakes with the peers that stay as they are:
// those to which it has nothing to send learn of the key, too.
func (p *plan) beginAnew(have *wgtypes.Device, keepAlive time.Duration) {
	touched := map[wgtypes.Key]bool{}
	for i := range p.peers {
		touched[p.peers[i].PublicKey] = true
	}
	none, first := time.Duration(0), time.Second
	for i := range have.Peers {
		k := have.Peers[i].PublicKey
		if touched[k] || isSilent(&have.Peers[i]) {
			continue
		}
		for _, every := range []*time.Duration{&none, &first} { // only one that is switched on is sent at once
			p.peers = append(p.peers, wgtypes.PeerConfig{PublicKey: k, UpdateOnly: true, PersistentKeepaliveInterval: every})
		}
		p.begin = append(p.begin, wgtypes.PeerConfig{PublicKey: k, UpdateOnly: true, PersistentKeepaliveInterval: &keepAlive})
	}
}

// isSilent reports whether a peer is there only so that its first message is seen.
func isSilent(p *wgtypes.Peer) bool { return p.PresharedKey != (wgtypes.Key{}) }

// hasMoved reports whether a node uses its next key: it has begun a handshake by it, or the peer is
// the one of its address already.
func hasMoved(p *wgtypes.Peer, a netip.Addr) bool {
	if p == nil {
		return false
	}
	of := single(a)
	return isSilent(p) && p.ReceiveBytes > 0 || !isSilent(p) && len(p.AllowedIPs) == 1 && p.AllowedIPs[0].String() == of.String()
}

// isPeer reports whether a peer is as it should be. Its endpoint may be another one since it was
// heard: a NAT between the nodes may have changed it.
func isPeer(p *wgtypes.Peer, a netip.Addr, port uint16) bool {
	want := single(a)
	return len(p.AllowedIPs) == 1 && p.AllowedIPs[0].String() == want.String() && p.Endpoint != nil &&
		(!p.LastHandshakeTime.IsZero() || p.Endpoint.IP.Equal(a.AsSlice()) && p.Endpoint.Port == int(port))
}

func single(a netip.Addr) net.IPNet {
	return net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
