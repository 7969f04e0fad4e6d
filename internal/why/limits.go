// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// noteLimits names the limits (QoS) that the packet meets at pods of this node: whether it is one
// too many depends on what else these send and get, and is no part of the answer.
func (i *inquiry) noteLimits() {
	if i.ask.Received == nil {
		i.noteLimit(i.sender(), "send", func(q nodestate.QoS) model.Limits { return q.Egress })
	}
	if to := i.result.Packet; to != nil && !i.fromHost() {
		i.noteLimit(to.IP.Dst, "get", func(q nodestate.QoS) model.Limits { return q.Ingress })
	}
}

// fromHost reports whether the node itself sends the packet: that is never limited.
func (i *inquiry) fromHost() bool {
	return i.state.Addrs[i.in.Packet.IP.Src].Kind == nodestate.AddrHost
}

func (i *inquiry) noteLimit(at netip.Addr, verb string, of func(nodestate.QoS) model.Limits) {
	a := i.state.Addrs[at]
	q, limited := i.state.QoS[a.Interface]
	if a.Kind != nodestate.AddrEndpoint || !limited {
		return
	}
	var words []string
	l := of(q)
	if l.Bandwidth > 0 {
		words = append(words, fmt.Sprintf("%d bits a second", l.Bandwidth))
	}
	if l.PacketRate > 0 {
		words = append(words, fmt.Sprintf("%d packets a second", l.PacketRate))
	}
	if l.Connections > 0 && i.ask.Protocol == model.ProtocolTCP {
		words = append(words, fmt.Sprintf("and have %d connections open", l.Connections))
	}
	if len(words) > 0 {
		i.answer.Notes = append(i.answer.Notes, fmt.Sprintf("pod %s may %s %s (QoS): what is beyond that is dropped, whatever is said here", a.Owner, verb, strings.Join(words, ", ")))
	}
}
