// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/nettest"
)

// serve starts the servers on loopback, once. They never yield, so there is no garbage collection
// alongside them.
var serve = sync.OnceValues(func() (ServerOptions, error) {
	runtime.GOMAXPROCS(8)
	debug.SetGCPercent(-1)
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	o := ServerOptions{HTTP: at(18980), UDP: at(18980), Sink: at(18981), CPU: -1, SinkCPU: -1}
	_, err := Serve(o)
	return o, err
})

func TestTraffic(t *testing.T) {
	o, err := serve()
	if err != nil {
		t.Fatal(err)
	}
	target := Target{To: o.HTTP, From: Ports{41000, 45999}, CPU: -1, Patience: time.Minute, Limit: 2 * time.Minute}

	times, err := Requests(target, 50)
	if err != nil || len(times) != 50 {
		t.Fatalf("%d requests: %v", len(times), err)
	}
	for _, v := range times {
		if v <= 0 {
			t.Fatalf("a connection took %v µs", v)
		}
	}
	if cpu, err := ServerCPU(target); err != nil || cpu <= 0 {
		t.Errorf("server's CPU time %v: %v", cpu, err)
	}
	if times, err := RoundTrips(target, 50, 64); err != nil || len(times) != 50 {
		t.Errorf("%d round trips: %v", len(times), err)
	}
	target.To = o.Sink
	f, err := Stream(target, 50*time.Millisecond)
	if err != nil || f.Bytes == 0 || f.Elapsed < 50*time.Millisecond || f.ServerCPU <= 0 || f.ClientCPU <= 0 {
		t.Errorf("stream %+v: %v", f, err)
	}
	f, sent, err := Datagrams(target, 200*time.Millisecond, Rate{Size: 500, Bits: 8e6})
	if err != nil || f.Bytes == 0 || f.Bytes > sent || sent > 250_000 || f.ServerCPU <= 0 || f.ClientCPU <= 0 {
		t.Errorf("datagrams %+v, %d bytes sent: %v", f, sent, err)
	}
	if _, _, err := Datagrams(target, time.Second, Rate{Size: 5, Bits: 1e6}); err == nil {
		t.Error("datagrams without room for their head were sent")
	}
}

// serveMany starts a server at three ports, once.
var serveMany = sync.OnceValues(func() (netip.AddrPort, error) {
	first := netip.MustParseAddrPort("127.0.0.1:18990")
	_, err := Serve(ServerOptions{HTTP: first, HTTPPorts: 3, CloseFirst: true, CPU: -1})
	return first, err
})

func TestManyPorts(t *testing.T) {
	nettest.NeedRoot(t, "a network namespace whose ports are all free")
	if _, err := serve(); err != nil { // enough threads
		t.Fatal(err)
	}
	first, err := serveMany()
	if err != nil {
		t.Fatal(err)
	}
	beyond := Target{To: netip.AddrPortFrom(first.Addr(), first.Port()+3), From: Ports{41000, 45999}, CPU: -1, Patience: 10 * time.Second, Limit: time.Minute}
	if _, err := Requests(beyond, 1); err == nil {
		t.Error("a port beyond the last one is taken too")
	}
	for i := range uint16(3) {
		target := Target{To: netip.AddrPortFrom(first.Addr(), first.Port()+i), From: Ports{41000, 45999}, CPU: -1, Patience: 10 * time.Second, Limit: time.Minute}
		if times, err := Requests(target, 5); err != nil || len(times) != 5 {
			t.Errorf("port %d: %d requests: %v", target.To.Port(), len(times), err)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	target := Target{To: netip.MustParseAddrPort("127.0.0.1:1"), From: Ports{41000, 45999}, CPU: -1, Patience: time.Minute, Limit: time.Minute}
	if _, err := Requests(target, 1); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := Requests(Target{To: netip.MustParseAddrPort("[::1]:80"), From: Ports{1, 2}}, 1); err == nil {
		t.Error("IPv6 was taken")
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		body  string
		whole bool
		fails bool
	}{
		"HTTP/1.1 200 OK\r\nContent-Le":                         {},
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab":        {body: "ab"},
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc":       {body: "abc", whole: true},
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":          {whole: true},
		"HTTP/1.1 200 OK\r\nX: y\r\n\r\nabc":                    {fails: true},
		"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc":      {fails: true},
		"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n": {fails: true},
	} {
		body, whole, err := parse([]byte(text))
		if (err != nil) != want.fails || whole != want.whole || (!want.fails && string(body) != want.body) {
			t.Errorf("%q: got %q, %v, %v", text, body, whole, err)
		}
	}
}

func TestPorts(t *testing.T) {
	p, err := ParsePorts("10-12")
	if err != nil || p.at(0) != 10 || p.at(2) != 12 || p.at(3) != 10 {
		t.Errorf("%v, %v", p, err)
	}
	for _, s := range []string{"", "5", "9-8", "0-5", "1-70000", "a-b"} {
		if _, err := ParsePorts(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
	if p, _ := ParsePorts("1-65535"); p.at(65534) != 65535 || p.at(65535) != 1 {
		t.Error("full range")
	}
}
