// SPDX-License-Identifier: Apache-2.0

package namereader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
)

// teacher has the program that reads answers note addresses: it runs on answers of one question
// that say the same and that it can read. So there is one place that knows patterns, shares of the
// table and deadlines, and entries are written under the program's lock.
type teacher struct {
	program *ebpf.Program
	asked   *ebpf.Map // weir_name_asked
	counts  *ebpf.Map // of the program's own
}

const (
	recordsMost = 60   // of a message: the program reads a few more
	bytesMost   = 2500 // of a message: a run of a program takes a page less some headers
	taughtID    = 0x4d53
)

// question is a key of weir_name_asked, or with ID 0 of weir_name_streams.
func question(ifindex uint32, server netip.Addr, port, id uint16, proto uint32) abi.WeirNameQuestion {
	be := func(v uint16) uint16 {
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], v)
		return binary.NativeEndian.Uint16(b[:])
	}
	return abi.WeirNameQuestion{Ifindex: ifindex, Server: abi.Widen(server), Port: be(port), Id: be(id), Proto: proto}
}

// answered takes a question back, and reports whether there was one.
func (t teacher) answered(q abi.WeirNameQuestion) bool { return t.asked.Delete(q) == nil }

// teach has the addresses of an answer, whose question was found, noted for the pod at an
// interface. It reports whether some were, and how many found no room.
func (t teacher) teach(ifindex uint32, p answers.Packet, a *answers.Answer) (noted bool, full uint64, err error) {
	before, err := counters.Names(t.counts)
	if err != nil {
		return false, 0, err
	}
	skb := make([]byte, skbSize)
	binary.NativeEndian.PutUint32(skb[skbIfIndex:], ifindex)
	for _, m := range split(a) {
		q := question(ifindex, p.Server, p.Port, taughtID, unix.IPPROTO_UDP)
		if err := t.asked.Put(q, uint32(0)); err != nil {
			return false, 0, fmt.Errorf("writing map weir_name_asked: %w", err)
		}
		if _, err := t.program.Run(&ebpf.RunOptions{Data: frameOf(p, m), Context: skb}); err != nil {
			return false, 0, errors.Join(fmt.Errorf("running the program that reads answers: %w", err), t.asked.Delete(q))
		}
	}
	after, err := counters.Names(t.counts)
	if err == nil && after["unread"]+after["unasked"]+after["untrusted"] != before["unread"]+before["unasked"]+before["untrusted"] {
		err = errNotTaken
	}
	return after["noted"] > before["noted"], after["full"] - before["full"], err
}

var errNotTaken = errors.New("the program that reads answers did not take what was made of one")

// Of struct __sk_buff, a fixed part of the kernel's interface.
const (
	skbIfIndex = 40
	skbSize    = 192
)

// split makes messages of an answer, all of its question: each address with each of its names. The
// least of the times to live is that of each address.
func split(a *answers.Answer) (out [][]byte) {
	if len(a.Addrs) == 0 {
		return nil
	}
	asked := a.Names[:1]
	for names := a.Names[1:]; ; {
		n, size := 0, len(asked[0])+20
		for n < len(names) && n < recordsMost/2 && size+len(names[n]) < bytesMost/2 {
			size += len(names[n]) + 20
			n++
		}
		some := slices.Concat(asked, names[:n])
		for addrs := a.Addrs; len(addrs) > 0; {
			most := min(len(addrs), recordsMost-len(some), (bytesMost-size)/28)
			out = append(out, message(some, addrs[:most]))
			addrs = addrs[most:]
		}
		if names = names[n:]; len(names) == 0 {
			return out
		}
	}
}

const (
	typeA, typeCNAME, typeAAAA = 1, 5, 28
	classIN                    = 1
	ttlMost                    = 1<<31 - 1
)

func message(names []string, addrs []answers.Addr) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(nil, taughtID)
	b = append(b, 0x80, 0, 0, 1)
	b = be.AppendUint16(b, uint16(len(names)-1+len(addrs)))
	b = append(b, 0, 0, 0, 0)
	b = appendName(b, names[0])
	b = append(b, 0, typeA, 0, classIN)
	record := func(kind uint16, ttl uint32, data []byte) {
		b = be.AppendUint16(append(b, 0xc0, 12), kind)
		b = be.AppendUint32(append(b, 0, classIN), ttl)
		b = append(be.AppendUint16(b, uint16(len(data))), data...)
	}
	for _, n := range names[1:] {
		record(typeCNAME, ttlMost, appendName(nil, n))
	}
	for _, a := range addrs {
		if a.Addr.Is4() {
			record(typeA, a.TTL, a.Addr.AsSlice())
		} else {
			record(typeAAAA, a.TTL, a.Addr.AsSlice())
		}
	}
	return b
}

// appendName writes a name in as few labels as take it: the program, which reads so many of a name
// at most, takes a dot in a label for one between labels, as names are text to it.
func appendName(b []byte, name string) []byte {
	for len(name) > 0 {
		n := len(name)
		if n > 63 {
			for n = 63; n > 0 && name[n] != '.'; {
				n--
			}
			if n == 0 {
				n = 63 // no name that was read has such a label
			}
		}
		b = append(append(b, byte(n)), name[:n]...)
		if name = name[n:]; name != "" && name[0] == '.' {
			name = name[1:]
		}
	}
	return append(b, 0)
}

// frameOf is a datagram with a message, from the server to the pod.
func frameOf(p answers.Packet, message []byte) []byte {
	be := binary.BigEndian
	length := uint16(8 + len(message))
	b := make([]byte, 12, 128+len(message))
	if p.Server.Is4() {
		b = append(b, 0x08, 0, 0x45, 0)
		b = append(be.AppendUint16(b, 20+length), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = append(be.AppendUint16(b, length), unix.IPPROTO_UDP, 64)
	}
	b = append(append(b, p.Server.AsSlice()...), p.Client.AsSlice()...)
	b = be.AppendUint16(be.AppendUint16(b, 53), p.Port)
	b = append(be.AppendUint16(b, length), 0, 0)
	return append(b, message...)
}
