// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// sink reads what connections bring to its end, and answers each with how many bytes that were, and
// how many came by the interface within the second in which the most did.
func sink(r request) error {
	return serveConns(r.Addr, func(c net.Conn) {
		counts := make(chan uint64)
		over := make(chan struct{})
		go func() { counts <- mostInSecond(over) }()
		n, _ := io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, pourSize))
		close(over)
		_, _ = c.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(n)), <-counts)) // who asked sees it end
	})
}

// mostInSecond is the most that came by the interface within a second, bytes, by its counter. What
// is counted between two readings came after the first was begun, and before the second was done:
// however late a busy machine reads, it finds no more than there was.
func mostInSecond(over <-chan struct{}) (most uint64) {
	type reading struct {
		begun, done time.Time
		bytes       uint64
	}
	var last []reading
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		now := reading{begun: time.Now(), bytes: bytesIn("eth0")}
		now.done = time.Now()
		for len(last) > 0 && now.done.Sub(last[0].begun) > time.Second {
			last = last[1:]
		}
		if last = append(last, now); now.bytes-last[0].bytes > most {
			most = now.bytes - last[0].bytes
		}
		select {
		case <-over:
			tick.Stop()
			return most
		case <-tick.C:
		}
	}
}

// bytesIn is how many bytes came by an interface of this network namespace.
func bytesIn(name string) uint64 {
	b, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		of, counters, ok := strings.Cut(line, ":")
		if f := strings.Fields(counters); ok && strings.TrimSpace(of) == name && len(f) > 0 {
			n, err := strconv.ParseUint(f[0], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// pourSize is how much is written, and read, at once, bytes.
const pourSize = 128 << 10

// pour sends to a sink for r.Every ms, and says how many bytes it got and how many µs that took.
func pour(r request, timeout time.Duration) answer {
	c, err := dial(r, timeout)
	if err != nil {
		return fromErr(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	buf, sent, begun := make([]byte, pourSize), uint64(0), time.Now()
	for time.Since(begun) < time.Duration(r.Every)*time.Millisecond {
		if _, err := c.Write(buf); err != nil {
			return fromErr(err)
		}
		sent += pourSize
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return fromErr(err)
	}
	var got [16]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return fromErr(err)
	}
	if n := binary.BigEndian.Uint64(got[:8]); n != sent {
		return fromErr(fmt.Errorf("%d bytes arrived of %d", n, sent))
	}
	return answer{Counters: map[string]int{"bytes": int(sent), "most": int(binary.BigEndian.Uint64(got[8:])), "µs": int(time.Since(begun).Microseconds())}}
}

// gbits is the throughput of one connection between two pods, Gbit/s.
func (w *worker) gbits(addr string, ms int) float64 {
	w.t.Helper()
	a := w.call(request{Op: "pour", Net: "tcp", Addr: addr, Every: ms, Timeout: 60_000})
	if a.Err != "" {
		w.t.Fatalf("a stream to %s: %s", addr, a.Err)
	}
	return float64(a.Counters["bytes"]) * 8 / float64(a.Counters["µs"]) / 1000
}

// sentByVXLAN is how many bytes the device of VXLAN has sent; 0 where there is none.
func (n *node) sentByVXLAN(t *testing.T) (bytes uint64) {
	t.Helper()
	text := run(t, "ip netns exec %s cat /sys/class/net/vxlan.calico/statistics/tx_bytes 2>/dev/null || echo 0", n.netns)
	if _, err := fmt.Sscan(text, &bytes); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return bytes
}

// TestIPIPThroughput measures one connection of pods on two nodes by IP in IP and by VXLAN, in
// turns. What is measured is a figure; the test fails where a stream does not arrive, or goes by
// the other tunnel. With WEIR_TEST_FIGURES it takes half a minute.
func TestIPIPThroughput(t *testing.T) {
	for name, of := range map[string]string{"ebpf-IPv4": "IP in IP", "nft-IPv4": "IP in IP, nftables"} {
		t.Run(name, func(t *testing.T) { testIPIPThroughput(t, of) })
	}
}

func testIPIPThroughput(t *testing.T, of string) {
	if strings.Contains(of, "nftables") {
		needIPIP(t)
	}
	rounds, ms := 1, 100
	if os.Getenv(nettest.FiguresVariable) != "" {
		rounds, ms = 11, 1000
	}
	f := newFixture(t, ipv4)
	f.routed = true
	f.apply()
	if a := f.c.call(request{Op: "sink", Addr: ":8091"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	got := map[string][]float64{}
	for range rounds {
		for _, by := range []string{"VXLAN", "IP in IP"} {
			f.ipip(model.EncapNever)
			if by == "VXLAN" {
				f.encapsulate(model.EncapAlways)
			} else {
				f.ipip(model.EncapAlways)
			}
			f.apply()
			f.a.gbits(f.c.at("8091"), ms/10) // neighbours and flows are known then
			before := f.n1.sentByVXLAN(t)
			got[by] = append(got[by], f.a.gbits(f.c.at("8091"), ms))
			if sent := f.n1.sentByVXLAN(t) > before; sent != (by == "VXLAN") {
				t.Errorf("by %s: packets went by VXLAN: %t", by, sent)
			}
		}
	}
	t.Logf("Gbit/s: %v", got)
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	one, other := median(got["IP in IP"]), median(got["VXLAN"])
	nettest.Figure(t, of+": one connection of pods, Gbit/s", one)
	nettest.Figure(t, of+": the same by VXLAN, Gbit/s", other)
	nettest.Figure(t, of+": throughput, of that of VXLAN", one/other)
}
