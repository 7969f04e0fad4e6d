// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// tupleOf is a key in the words of connection tracking; answer says that it is of a flow's answers.
// It is not ok where connection tracking has no such flow, or tells flows by more than the key:
// ICMP that is no query, and protocols that have ports there but not here.
func tupleOf[A abi.Address](k abi.FlowKey[A], answer bool) (t conntrack.Tuple, ok bool) {
	t = conntrack.Tuple{Src: abi.FromAddr(k.Saddr), Dst: abi.FromAddr(k.Daddr), Proto: k.Proto}
	src, dst := abi.Be16(k.Sport), abi.Be16(k.Dport)
	switch {
	case t.Ported():
		t.SrcPort, t.DstPort = src, dst
	case t.ICMP():
		if answer {
			src, dst = dst, src
		}
		if dst-src > 0xff {
			return t, false
		}
		t.ID, t.Type = src, uint8(dst-src)
		if _, reply, ok := t.Query(); !ok || reply {
			return t, false
		}
		if answer {
			t.Type = t.Reversed().Type
		}
	case k.Proto == unix.IPPROTO_GRE || k.Proto == unix.IPPROTO_UDPLITE || k.Proto == unix.IPPROTO_DCCP:
		return t, false
	}
	return t, true
}

// KeyOf is the key of a tuple's packets.
func KeyOf[A abi.Address](t conntrack.Tuple) (k abi.FlowKey[A], ok bool) {
	k = abi.FlowKey[A]{Saddr: abi.ToAddr[A](t.Src), Daddr: abi.ToAddr[A](t.Dst), Proto: t.Proto}
	ok = true
	switch {
	case t.Ported():
		k.Sport, k.Dport = abi.Be16(t.SrcPort), abi.Be16(t.DstPort)
	case t.ICMP():
		var query uint8
		var answer bool
		query, answer, ok = t.Query()
		k.Sport, k.Dport = abi.Be16(t.ID), abi.Be16(t.ID+uint16(query))
		if answer {
			k.Sport, k.Dport = k.Dport, k.Sport
		}
	case t.Proto == unix.IPPROTO_GRE, t.Proto == unix.IPPROTO_UDPLITE, t.Proto == unix.IPPROTO_DCCP:
		ok = false
	}
	return k, ok && abi.Carries[A](t.Src) && abi.Carries[A](t.Dst)
}
