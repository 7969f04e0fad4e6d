// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// mirrorPolicy writes the counterpart of look-up 2 into out: what is said of ICMP is said of
// ICMPv6, with the types of echoes exchanged. What one entry says of several types becomes an entry
// for each, because types that are neighbours in one family are none in the other.
func mirrorPolicy(out *nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue], in nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue]) {
	split := map[nodestate.PolicyKey]nodestate.PolicyKey{} // an entry for a type: from which one it was made
	for k, v := range in.All() {
		switch k.Proto {
		case model.ProtocolICMP:
			mirrorMessages(k, split)
			continue
		case model.ProtocolICMPv6:
			k.Proto = model.ProtocolICMP
		}
		if k.Head && v.Protos&nodestate.ProtoBitICMP != 0 {
			v.Lens |= 1 << 8
		}
		out.Set(k, v)
	}
	for k, from := range split {
		out.Set(k, in.At(from))
	}
}

// mirrorMessages adds the counterparts of an entry of ICMP, unless one of a longer prefix has the
// place.
func mirrorMessages(from nodestate.PolicyKey, split map[nodestate.PolicyKey]nodestate.PolicyKey) {
	first, count := int(from.Port>>8), 1
	if from.Len < 8 {
		count = 1 << (8 - from.Len)
	}
	for t := first; t < first+count; t++ {
		k := from
		k.Proto, k.Len = model.ProtocolICMPv6, max(from.Len, 8)
		k.Port = SixMessage(uint16(t)<<8 | from.Port&0xff)
		if have, ok := split[k]; !ok || have.Len < from.Len {
			split[k] = from
		}
	}
}
