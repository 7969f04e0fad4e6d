// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Number is WEIR_ABI of bpf/abi.h. A test compares it, and the numbers below, with that file.
const Number = 4

// Bits and indexes of bpf/abi.h. Enums that no variable has as its type are not in the object's
// BTF, so they cannot be generated with the types.
const (
	AddrNATOutgoing = 1
	AddrSameLink    = 2
	AddrTunnel      = 4
	AddrPrimary     = 8
	AddrNodePorts   = 16
	AddrKeepSource  = 32
	AddrStaged      = 64

	RoutePool     = 1
	RouteRemote   = 2
	RouteLocal    = 4
	RouteTunnel   = 8
	RouteSameLink = 16

	ScopeAll   = 0
	ScopeLocal = 1

	LiveAll   = 1
	LiveLocal = 2

	SvcLocalFrontend = 1
	SvcExternal      = 2
	SvcLocal         = 4
	SvcRestricted    = 8
	SvcHostBackend   = 16
	SvcModeTunnel    = 256
	SvcModeDSR       = 512
	SvcMaglev        = 1024

	SlotLocal = 1

	SockAsked = 256

	SetDSR      = 1
	SetCTLBTCP  = 2
	SetCTLBUDP  = 4
	SetPorts    = 8
	SetHostNAT  = 16
	SetEvents   = 32
	SetHandOver = 128
	SetChanging = 64

	MarkMask = 0x0ff00000
	MarkDone = 0x0ba00000
	MarkOwn  = kernel.OwnMark
	MarkSeen = 0x0bc00000

	PolicyAllow     = 1
	PolicyLog       = 2
	PolicyUndecided = 4

	SetHosts     = 256
	SetUntracked = 2048
	SetApart     = 4096
	SetMarks     = 8192

	SetVXLANFromPods = 16384
	SetIPIPFromPods  = 32768
	SetRPFStrict     = 65536

	SetToHostDrop   = 512
	SetToHostReturn = 1024

	HostIngress          = 0
	HostEgress           = 1
	HostForwardIngress   = 2
	HostForwardEgress    = 3
	HostPreDNAT          = 4
	HostUntrackedIngress = 6
	HostUntrackedEgress  = 7
	HostStaged           = 1

	TimeoutTCPSyn     = 0
	TimeoutTCPEst     = 1
	TimeoutTCPClosing = 2
	TimeoutUDP        = 3
	TimeoutICMP       = 4
	TimeoutOther      = 5
	TimeoutFragment   = 6
	TimeoutDSRTries   = 7
	TimeoutDSRRetry   = 8
	TimeoutTCPFins    = 9

	CountDSRFallen     = 0
	CountEventsLost    = 1
	CountEventsLimited = 2
	CountUntracked     = 3

	EventAllowed = 1
	EventLog     = 2
	EventAgain   = 4
	EventEgress  = 8
	EventIngress = 16
	EventHostIn  = 32
	EventHostOut = 64

	StagedEgress        = 1
	StagedEgressDenied  = 2
	StagedIngress       = 4
	StagedIngressDenied = 8
	StagedHostIn        = 16
	StagedHostInDenied  = 32
	StagedHostOut       = 64
	StagedHostOutDenied = 128

	ActPass   = 0
	ActNeigh  = 2
	ActTunnel = 3

	FlowReply    = 1
	FlowRewrite  = 2
	FlowViaNode  = 4
	FlowHandOn   = 8
	FlowFromHost = 32
	FlowSNAT     = 64
	FlowClamp    = 128

	FromPod = 2

	StateReplied  = 1
	StateFIN      = 2
	StateClosing  = 4
	StateAnswered = 8
	StateReset    = 32

	PortWords       = 8192
	PortTCPFrontend = 1
	PortTCPHost     = 4
	PortShiftUDP    = 1
	PortShiftSCTP   = 4

	AnswerPortUnreachable = 1
	AnswerTimeExceeded    = 2
	AnswerTooBig          = 3
	AnswerHostUnreachable = 4
	AnswerReset           = 5
	AnswerLimited         = 14
	AnswerFailed          = 15

	// UnansweredShift shortens the time-out of a UDP flow that nobody has answered.
	UnansweredShift = 2
	NumTimeouts     = 10
)

// Be16 turns a port into network byte order and back.
func Be16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

func ToPrefix[A Address](p netip.Prefix) PrefixKey[A] {
	return PrefixKey[A]{Len: uint32(p.Bits()), Addr: ToAddr[A](p.Masked().Addr())}
}

// ToRange returns the key of one of a service port's source ranges.
func ToRange[A Address](id nodestate.Frontend, p netip.Prefix) RangeKey[A] {
	return RangeKey[A]{Len: uint32(RangeBits[A]() + p.Bits()), Id: ToSvc[A](id), Addr: ToAddr[A](p.Masked().Addr())}
}

// RangeBits are the bits of a range_key's prefix before those of the address.
func RangeBits[A Address]() int { return 8 * int(unsafe.Sizeof(SvcKey[A]{})) }

func ShowRange[A Address](k RangeKey[A]) string {
	return fmt.Sprintf("%s from %s/%d", ShowSvc(k.Id), FromAddr(k.Addr), int(k.Len)-RangeBits[A]())
}

func ToSvc[A Address](f nodestate.Frontend) SvcKey[A] {
	return SvcKey[A]{Addr: ToAddr[A](f.Addr), Port: Be16(f.Port), Proto: uint8(f.Proto)}
}

func ShowAddr[A Address](v A) string { return FromAddr(v).String() }
func ShowPrefix[A Address](k PrefixKey[A]) string {
	return fmt.Sprintf("%s/%d", FromAddr(k.Addr), k.Len)
}
func ShowSvc[A Address](k SvcKey[A]) string {
	return fmt.Sprintf("%s:%d/%d", FromAddr(k.Addr), Be16(k.Port), k.Proto)
}
func ShowBackend[A Address](k BackendKey[A]) string {
	return fmt.Sprintf("%s scope %d slot %d", ShowSvc(k.Svc), k.Svc.Scope, k.Slot)
}
func ShowLive[A Address](k LiveKey[A]) string {
	return fmt.Sprintf("%s backend %s:%d", ShowSvc(k.Svc), FromAddr(k.Backend.Addr), Be16(k.Backend.Port))
}
func ShowPolicy(k WeirPolicyKey) string {
	if k.Head != 0 {
		return fmt.Sprintf("set %016x peer %016x", k.Set, k.Peer)
	}
	return fmt.Sprintf("set %016x peer %016x protocol %d port %d/%d", k.Set, k.Peer, k.Proto, k.Port, k.Len)
}
func ShowHost(k WeirHostKey) string {
	return fmt.Sprintf("interface %d, IPv%d", k.Ifindex, k.Family)
}
func ShowCookie(k uint64) string    { return fmt.Sprintf("netns %d", k) }
func ShowLink(k WeirLinkKey) string { return fmt.Sprintf("%x", k.Mac) }
