// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"
)

// A client and a server set an association up over the loopback device; nobody answers at a port
// that is not served.
func TestAssociation(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("raw sockets need root: run with sudo")
	}
	const port = 29003
	go func() { t.Error(serve(map[uint16]bool{port: true})) }()
	to := netip.MustParseAddr("127.0.0.1")
	if err := connect(netip.AddrPortFrom(to, port), 30*time.Second); err != nil {
		t.Errorf("a served port: %v", err)
	}
	if err := connect(netip.AddrPortFrom(to, port+1), 1200*time.Millisecond); !errors.Is(err, errTimeout) {
		t.Errorf("a port that is not served: %v", err)
	}
}

func TestPacket(t *testing.T) {
	t.Parallel()
	p := packet{src: 40000, dst: 9003, tag: 7, chunk: chunkCookieEcho, value: []byte{1, 2, 3, 4, 5}}
	b := p.marshal()
	if got := parse(b); got.src != p.src || got.dst != p.dst || got.tag != p.tag || got.chunk != p.chunk || string(got.value) != string(p.value) {
		t.Errorf("%+v", got)
	}
	b[17] ^= 1
	if got := parse(b); got.chunk != chunkNone {
		t.Errorf("a wrong checksum: %+v", got)
	}
	for n := range b {
		parse(b[:n])
	}
}

// A server answers with the client's tag, and no cookie but its own.
func TestAnswer(t *testing.T) {
	t.Parallel()
	ack, ok := packet{src: 1, dst: 2, chunk: chunkInit, value: initValue(99)}.answer()
	if !ok || ack.tag != 99 || ack.chunk != chunkInitAck || ack.src != 2 || ack.dst != 1 {
		t.Fatalf("%+v %v", ack, ok)
	}
	tag, cookie, ok := ack.initAck()
	if !ok || tag != serverTag(99) {
		t.Fatalf("tag %d, cookie %v, %v", tag, cookie, ok)
	}
	if got, ok := (packet{tag: tag, chunk: chunkCookieEcho, value: cookie}).answer(); !ok || got.chunk != chunkCookieAck || got.tag != 99 {
		t.Errorf("%+v %v", got, ok)
	}
	if _, ok := (packet{tag: tag, chunk: chunkCookieEcho, value: binary.BigEndian.AppendUint32(nil, 98)}).answer(); ok {
		t.Error("a forged cookie was accepted")
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	if to, limit, ok := association([]string{"connect", "--timeout=3s", "--protocol=sctp", "10.0.0.1:9003"}); !ok || limit != 3*time.Second || to.Port() != 9003 {
		t.Errorf("%v %v %v", to, limit, ok)
	}
	for _, args := range [][]string{{"connect", "--timeout=3s", "--protocol=tcp", "10.0.0.1:80"}, {"pause"}, {}} {
		if _, _, ok := association(args); ok {
			t.Errorf("%q is taken for SCTP", args)
		}
	}
	if ports := served([]string{"PATH=/bin", "SERVE_SCTP_PORT_9003=foo", "SERVE_PORT_80=x"}); len(ports) != 1 || !ports[9003] {
		t.Errorf("%v", ports)
	}
}
