// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"encoding/binary"
	"hash/crc32"
)

// Types of chunks (RFC 9260, section 3.2).
const (
	chunkInit       = 1
	chunkInitAck    = 2
	chunkAbort      = 6
	chunkCookieEcho = 10
	chunkCookieAck  = 11
	chunkNone       = 255
)

// paramCookie is the type of the state cookie in an INIT ACK.
const paramCookie = 7

// packet is an SCTP packet with one chunk.
type packet struct {
	src, dst uint16
	tag      uint32
	chunk    uint8
	value    []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p packet) marshal() []byte {
	b := make([]byte, 16, 16+len(p.value)+3)
	binary.BigEndian.PutUint16(b, p.src)
	binary.BigEndian.PutUint16(b[2:], p.dst)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	b[12] = p.chunk
	binary.BigEndian.PutUint16(b[14:], uint16(4+len(p.value)))
	b = append(b, p.value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// parse reads a packet's first chunk. What is cut short or has a wrong checksum has none.
func parse(b []byte) packet {
	none := packet{chunk: chunkNone}
	if len(b) < 16 {
		return none
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	whole := append([]byte{}, b...)
	clear(whole[8:12])
	n := int(binary.BigEndian.Uint16(b[14:]))
	if crc32.Checksum(whole, castagnoli) != sum || n < 4 || 12+n > len(b) {
		return none
	}
	return packet{src: binary.BigEndian.Uint16(b), dst: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]),
		chunk: b[12], value: b[16 : 12+n]}
}

// initValue is that of an INIT: our tag, window, streams, and sequence number.
func initValue(tag uint32) []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint32(b, tag)
	binary.BigEndian.PutUint32(b[4:], 65536)
	binary.BigEndian.PutUint16(b[8:], 1)
	binary.BigEndian.PutUint16(b[10:], 1)
	binary.BigEndian.PutUint32(b[12:], 1)
	return b
}

// initAck reads the other end's tag and its cookie.
func (p packet) initAck() (tag uint32, cookie []byte, ok bool) {
	if len(p.value) < 20 {
		return 0, nil, false
	}
	tag = binary.BigEndian.Uint32(p.value)
	for b := p.value[16:]; len(b) >= 4; {
		n := int(binary.BigEndian.Uint16(b[2:]))
		if n < 4 || n > len(b) {
			return 0, nil, false
		}
		if binary.BigEndian.Uint16(b) == paramCookie {
			return tag, b[4:n], tag != 0
		}
		b = b[min(len(b), (n+3)/4*4):]
	}
	return 0, nil, false
}

// answer is what a server sends back. Its tag is made of the client's, and the cookie is all that
// it remembers.
func (p packet) answer() (packet, bool) {
	out := packet{src: p.dst, dst: p.src}
	switch {
	case p.chunk == chunkInit && p.tag == 0 && len(p.value) >= 16:
		client := binary.BigEndian.Uint32(p.value)
		cookie := binary.BigEndian.AppendUint16(nil, paramCookie)
		cookie = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(cookie, 8), client)
		out.chunk, out.tag, out.value = chunkInitAck, client, append(initValue(serverTag(client)), cookie...)
		return out, client != 0 && serverTag(client) != 0
	case p.chunk == chunkCookieEcho && len(p.value) == 4:
		client := binary.BigEndian.Uint32(p.value)
		out.chunk, out.tag = chunkCookieAck, client
		return out, p.tag == serverTag(client)
	}
	return packet{}, false
}

func serverTag(client uint32) uint32 { return client ^ 0x80000000 }
