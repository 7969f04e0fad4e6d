// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// ProtoSCTP is the IP protocol number of SCTP (RFC 9260).
const ProtoSCTP = 132

// Types of SCTP chunks (RFC 9260, section 3.2) that say something about the association.
const (
	ChunkData             = 0
	ChunkInit             = 1
	ChunkInitAck          = 2
	ChunkHeartbeat        = 4
	ChunkHeartbeatAck     = 5
	ChunkAbort            = 6
	ChunkShutdown         = 7
	ChunkShutdownAck      = 8
	ChunkCookieEcho       = 10
	ChunkCookieAck        = 11
	ChunkShutdownComplete = 14
)

const (
	sctpLen = 12 // bytes of the common header
	sctpSum = 8  // where its checksum lies
)

var chunkNames = map[uint8]string{
	ChunkData: "DATA", ChunkInit: "INIT", ChunkInitAck: "INIT-ACK", ChunkHeartbeat: "HEARTBEAT", ChunkHeartbeatAck: "HEARTBEAT-ACK",
	ChunkAbort: "ABORT", ChunkShutdown: "SHUTDOWN", ChunkShutdownAck: "SHUTDOWN-ACK", ChunkCookieEcho: "COOKIE-ECHO",
	ChunkCookieAck: "COOKIE-ACK", ChunkShutdownComplete: "SHUTDOWN-COMPLETE",
}

// chunkRest is what follows the type of an empty chunk: no flags, four bytes long.
var chunkRest = []byte{0, 0, 4}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpCRC is the checksum of an SCTP packet, as the number that lies there in little endian
// (RFC 9260, appendix A). What is in its place does not count.
func sctpCRC(b []byte) uint32 {
	c := crc32.Update(0, castagnoli, b[:sctpSum])
	c = crc32.Update(c, castagnoli, make([]byte, 4))
	return crc32.Update(c, castagnoli, b[sctpLen:])
}

// marshalSCTP writes all that follows the IP header.
func (p *Packet) marshalSCTP() []byte {
	b := make([]byte, sctpLen+1, sctpLen+1+len(p.Payload))
	be.PutUint16(b[0:], p.SrcPort)
	be.PutUint16(b[2:], p.DstPort)
	be.PutUint32(b[4:], p.Tag)
	b[sctpLen] = p.Chunk
	b = append(b, p.Payload...)
	if !p.NoSum {
		binary.LittleEndian.PutUint32(b[sctpSum:], sctpCRC(b)^p.CRCError)
	}
	return b
}

// unmarshalSCTP reads a packet that has a chunk.
func (p *Packet) unmarshalSCTP(b []byte) bool {
	if len(b) <= sctpLen {
		return false
	}
	p.Kind = SCTP
	p.SrcPort, p.DstPort, p.Tag = be.Uint16(b[0:]), be.Uint16(b[2:]), be.Uint32(b[4:])
	p.Chunk, p.Payload = b[sctpLen], clone(b[sctpLen+1:])
	sum := binary.LittleEndian.Uint32(b[sctpSum:])
	if p.NoSum = sum == 0; !p.NoSum {
		p.CRCError = sum ^ sctpCRC(b)
	}
	return true
}

// FirstChunk is the type of the first chunk of an SCTP packet or of its first fragment, if it has
// one.
func (p *Packet) FirstChunk() (uint8, bool) {
	if p.Kind == SCTP {
		return p.Chunk, true
	}
	if p.Kind == Other && p.IP.Proto == ProtoSCTP && p.IP.Offset == 0 && len(p.Payload) > sctpLen {
		return p.Payload[sctpLen], true
	}
	return 0, false
}

// rewriteSCTP gives a packet that has no chunk other ports.
func rewriteSCTP(b []byte, sport, dport uint16) {
	before := sctpCRC(b)
	be.PutUint16(b[0:], sport)
	be.PutUint16(b[2:], dport)
	if sum := binary.LittleEndian.Uint32(b[sctpSum:]); sum != 0 {
		binary.LittleEndian.PutUint32(b[sctpSum:], sum^before^sctpCRC(b))
	}
}

// parseChunk reads the name of a chunk type, or chunk<number>.
func parseChunk(w string) (uint8, error) {
	for n, name := range chunkNames {
		if name == w {
			return n, nil
		}
	}
	digits, ok := strings.CutPrefix(w, "chunk")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q: neither a chunk's name nor chunk<number>", w)
	}
	return uint8(n), nil
}

func chunkText(n uint8) string {
	if name, ok := chunkNames[n]; ok {
		return name
	}
	return "chunk" + strconv.Itoa(int(n))
}
