package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// abiNumber is WEIR_ABI of bpf/abi.h. A test compares it, and the numbers below, with that file.
const abiNumber = 4

// Bits and indexes of bpf/abi.h. Enums that no variable has as its type are not in the object's
// BTF, so they cannot be generated with the types.
const (
	addrNATOutgoing = 1
	addrSameLink    = 2
	addrTunnel      = 4
	addrPrimary     = 8
	addrNodePorts   = 16
	addrKeepSource  = 32
	addrStaged      = 64

	routePool     = 1
	routeRemote   = 2
	routeLocal    = 4
	routeTunnel   = 8
	routeSameLink = 16

	scopeAll   = 0
	scopeLocal = 1

	liveAll   = 1
	liveLocal = 2

	svcLocalFrontend = 1
	svcExternal      = 2
	svcLocal         = 4
	svcRestricted    = 8
	svcHostBackend   = 16
	svcModeTunnel    = 256
	svcModeDSR       = 512
	svcMaglev        = 1024

	slotLocal = 1

	sockAsked = 256

	setDSR      = 1
	setCTLBTCP  = 2
	setCTLBUDP  = 4
	setPorts    = 8
	setHostNAT  = 16
	setEvents   = 32
	setHandOver = 128
	setChanging = 64

	markMask = 0x0ff00000
	markDone = 0x0ba00000
	markOwn  = kernel.OwnMark
	markSeen = 0x0bc00000

	policyAllow     = 1
	policyLog       = 2
	policyUndecided = 4

	setHosts     = 256
	setUntracked = 2048
	setApart     = 4096
	setMarks     = 8192

	setVXLANFromPods = 16384
	setIPIPFromPods  = 32768
	setRPFStrict     = 65536

	setToHostDrop   = 512
	setToHostReturn = 1024

	hostIngress          = 0
	hostEgress           = 1
	hostForwardIngress   = 2
	hostForwardEgress    = 3
	hostPreDNAT          = 4
	hostUntrackedIngress = 6
	hostUntrackedEgress  = 7
	hostStaged           = 1

	timeoutTCPSyn     = 0
	timeoutTCPEst     = 1
	timeoutTCPClosing = 2
	timeoutUDP        = 3
	timeoutICMP       = 4
	timeoutOther      = 5
	timeoutFragment   = 6
	timeoutDSRTries   = 7
	timeoutDSRRetry   = 8
	timeoutTCPFins    = 9

	countDSRFallen     = 0
	countEventsLost    = 1
	countEventsLimited = 2
	countUntracked     = 3

	eventAllowed = 1
	eventLog     = 2
	eventAgain   = 4
	eventEgress  = 8
	eventIngress = 16
	eventHostIn  = 32
	eventHostOut = 64

	stagedEgress        = 1
	stagedEgressDenied  = 2
	stagedIngress       = 4
	stagedIngressDenied = 8
	stagedHostIn        = 16
	stagedHostInDenied  = 32
	stagedHostOut       = 64
	stagedHostOutDenied = 128
)

// be16 turns a port into network byte order and back.
func be16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

func toPrefix[A address](p netip.Prefix) prefixKey[A] {
	return prefixKey[A]{Len: uint32(p.Bits()), Addr: toAddr[A](p.Masked().Addr())}
}

// toRange returns the key of one of a service port's source ranges.
func toRange[A address](id nodestate.Frontend, p netip.Prefix) rangeKey[A] {
	return rangeKey[A]{Len: uint32(rangeBits[A]() + p.Bits()), Id: toSvc[A](id), Addr: toAddr[A](p.Masked().Addr())}
}

// rangeBits are the bits of a range_key's prefix before those of the address.
func rangeBits[A address]() int { return 8 * int(unsafe.Sizeof(svcKey[A]{})) }

func showRange[A address](k rangeKey[A]) string {
	return fmt.Sprintf("%s from %s/%d", showSvc(k.Id), fromAddr(k.Addr), int(k.Len)-rangeBits[A]())
}

func toSvc[A address](f nodestate.Frontend) svcKey[A] {
	return svcKey[A]{Addr: toAddr[A](f.Addr), Port: be16(f.Port), Proto: uint8(f.Proto)}
}

func showAddr[A address](v A) string { return fromAddr(v).String() }
func showPrefix[A address](k prefixKey[A]) string {
	return fmt.Sprintf("%s/%d", fromAddr(k.Addr), k.Len)
}
func showSvc[A address](k svcKey[A]) string {
	return fmt.Sprintf("%s:%d/%d", fromAddr(k.Addr), be16(k.Port), k.Proto)
}
func showBackend[A address](k backendKey[A]) string {
	return fmt.Sprintf("%s scope %d slot %d", showSvc(k.Svc), k.Svc.Scope, k.Slot)
}
func showLive[A address](k liveKey[A]) string {
	return fmt.Sprintf("%s backend %s:%d", showSvc(k.Svc), fromAddr(k.Backend.Addr), be16(k.Backend.Port))
}
func showPolicy(k weirPolicyKey) string {
	if k.Head != 0 {
		return fmt.Sprintf("set %016x peer %016x", k.Set, k.Peer)
	}
	return fmt.Sprintf("set %016x peer %016x protocol %d port %d/%d", k.Set, k.Peer, k.Proto, k.Port, k.Len)
}
func showHost(k weirHostKey) string {
	return fmt.Sprintf("interface %d, IPv%d", k.Ifindex, k.Family)
}
func showCookie(k uint64) string    { return fmt.Sprintf("netns %d", k) }
func showLink(k weirLinkKey) string { return fmt.Sprintf("%x", k.Mac) }
