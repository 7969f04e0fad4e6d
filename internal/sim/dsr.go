// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// wantsDSR: do answers to outside clients of the service go directly to them?
func (n *Node) wantsDSR(s nodestate.Service) bool {
	switch s.Mode {
	case model.ExternalModeTunnel:
		return false
	case model.ExternalModeDSR:
		return true
	}
	return n.state.Settings.DSR
}

// refusesDSR: is the client one whose answers never go directly to it?
func (n *Node) refusesDSR(client netip.Addr) bool {
	for _, p := range n.state.Settings.DSROptOut {
		if p.Contains(client) {
			return true
		}
	}
	return false
}

// tries are a client's handshakes that were answered directly, since it was heard last.
type tries struct {
	count       int
	first, last time.Duration // answers
}

// failedDSR: did direct answers not arrive at the client lately? Its second handshake in a row
// that it left unanswered says so too.
func (n *Node) failedDSR(k flowKey) bool {
	now, t := n.opts.Now(), n.state.Settings.DSRTimes
	if since, ok := n.fallen[k.src]; ok && now-since <= t.Retry {
		return true
	}
	tried, ok := n.tries[k.src]
	if !ok || !connects(k.proto) || tried.count < 2 || now-tried.last > t.Tries || now-tried.first < t.Patience {
		return false
	}
	n.fall(k.src)
	return true
}

// fall sends the client's answers by the node that it asks.
func (n *Node) fall(client netip.Addr) {
	n.fallen[client] = n.opts.Now()
	delete(n.tries, client)
}

// trackHandshake watches the handshake of a flow whose answers go directly to the client. It
// reports whether it is over.
func (n *Node) trackHandshake(f *flow, k flowKey, in In, flags uint8) bool {
	now := n.opts.Now()
	syn, ack := flags&packet.SYN != 0, flags&packet.ACK != 0
	switch {
	case f.reply && syn && ack:
		if f.answered {
			return false
		}
		f.answered = true
		if other := n.half[f.partner(k.proto)]; other != nil {
			other.answered, other.answeredAt = true, now
		}
		t := n.tries[f.dst]
		if t.count == 0 || now-t.last > n.state.Settings.DSRTimes.Tries {
			t = tries{first: now}
		}
		t.count, t.last = t.count+1, now
		n.tries[f.dst] = t
		return false
	case f.reply:
		return true
	case !f.answered:
		return false
	case !syn:
		delete(n.tries, k.src)
		return true
	case !ack && now-f.answeredAt >= n.state.Settings.DSRTimes.Patience:
		n.fallBack(f, k, in)
	}
	return false
}

// fallBack turns the answers of a half-open flow to the node that just handed its packet on again.
func (n *Node) fallBack(f *flow, k flowKey, in In) {
	s, nodePort, ok := n.frontend(k.dst, k.dport, k.proto)
	if !ok {
		return
	}
	via, rev := n.handedBy(in, nodePort, k.dst), n.half[f.partner(k.proto)]
	if !via.IsValid() || rev == nil {
		return
	}
	w, ok := n.toNode(via, handedOn(n.state.Addrs[via].SameLink))
	if !ok {
		return
	}
	rev.path, rev.viaNode, rev.dsr, f.dsr = w, true, false, false
	rev.clamp = rev.clamp || in.Hook == FromTunnel
	if s.Maglev && !nodePort && (f.path.action == Local || f.path.action == Pass) {
		f.watched, f.from = true, via
	}
	n.fall(k.src)
}
