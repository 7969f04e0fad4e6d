// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/packet"
)

// sender sends frames out of eth0, past the stack.
type sender struct {
	fd int
	to unix.SockaddrLinklayer
}

func newSender() (*sender, error) {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &sender{fd, unix.SockaddrLinklayer{Ifindex: link.Index}}, nil
}

// flood sends r.Size packets of r.Net (syn, ack, udp) to r.Addr by the neighbour whose MAC address
// is r.Name, each from another address of 11.0.0.0/8 or its counterparts. The answer is how long it
// took.
func flood(r request) answer {
	s, err := newSender()
	if err != nil {
		return fromErr(err)
	}
	defer unix.Close(s.fd)
	to, err := netip.ParseAddrPort(r.Addr)
	if err != nil {
		return fromErr(err)
	}
	p := packet.Packet{DstMAC: packet.MAC(parseMAC(r.Name)), SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1}, Type: packet.TypeIPv4, Kind: packet.TCP,
		DstPort: to.Port(), Flags: packet.SYN, Window: 1024, IP: packet.IPv4{Dst: to.Addr(), Proto: packet.ProtoTCP, TTL: 64}}
	switch r.Net {
	case "ack":
		p.Flags = packet.ACK
	case "udp":
		p.Kind, p.IP.Proto = packet.UDP, packet.ProtoUDP
	}
	source := func(a netip.Addr) netip.Addr { return a }
	if to.Addr().Is6() {
		p.Type, source = packet.TypeIPv6, six
	}
	begin := time.Now()
	for range r.Size {
		v := rand.Uint64()
		p.IP.Src = source(netip.AddrFrom4([4]byte{11, byte(v), byte(v >> 8), byte(v >> 16)}))
		p.SrcPort, p.Seq = uint16(1024+v>>24%60000), uint32(v>>32)
		frame, err := p.Marshal()
		if err != nil {
			return fromErr(err)
		}
		if err := unix.Sendto(s.fd, frame, 0, &s.to); err != nil && err != unix.ENOBUFS {
			return fromErr(err)
		}
	}
	return answer{Reply: time.Since(begin).String()}
}

// load is what goes on in a worker while something else happens: connections that talk all the
// time, and new ones.
type load struct {
	stop    atomic.Bool
	running sync.WaitGroup
	mu      sync.Mutex
	talks   int
	opened  int
	lost    int // new connections that did not come about
	errs    []string
	longest time.Duration // of a talk on an open connection
	gap     time.Duration // without a new connection
	last    time.Time     // when one was made
}

var current *load

// startLoad opens r.Size connections to r.Addr, which talk one after the other, and lets four
// others be opened and closed again and again.
func startLoad(r request, timeout time.Duration) answer {
	l := &load{last: time.Now()}
	var conns []net.Conn
	for range r.Size {
		c, err := dial(r, timeout)
		if err != nil {
			return fromErr(err)
		}
		conns = append(conns, c)
	}
	const talkers = 4
	for i := range talkers {
		l.running.Add(2)
		go l.talk(conns[i*len(conns)/talkers : (i+1)*len(conns)/talkers])
		go l.open(r)
	}
	current = l
	return answer{}
}

func (l *load) talk(conns []net.Conn) {
	defer l.running.Done()
	for !l.stop.Load() {
		for _, c := range conns {
			begin := time.Now()
			a := talk(c, time.Minute)
			l.mu.Lock()
			l.talks++
			l.longest = max(l.longest, time.Since(begin))
			if a.Err != "" {
				l.errs = append(l.errs, a.Err)
			}
			l.mu.Unlock()
		}
	}
}

func (l *load) open(r request) {
	defer l.running.Done()
	for !l.stop.Load() {
		a := fromErr(errors.New("not opened"))
		if c, err := dial(r, 20*time.Second); err == nil {
			a = talk(c, 20*time.Second)
			c.Close()
		}
		if a.Err != "" {
			l.mu.Lock()
			l.lost++
			l.mu.Unlock()
			continue
		}
		l.mu.Lock()
		l.opened++
		if !l.stop.Load() {
			l.gap = max(l.gap, time.Since(l.last))
		}
		l.last = time.Now()
		l.mu.Unlock()
	}
}

// loadReport is what a load saw.
type loadReport struct {
	Talks, Opened, Lost int
	Errs                []string
	Longest, Gap        time.Duration
}

// stopLoad ends the load once something was seen of it: on a busy machine the flood may be over
// sooner.
func stopLoad() answer {
	l := current
	for end := time.Now().Add(await.Patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		seen := l.talks > 0 && l.opened > 0
		l.mu.Unlock()
		if seen {
			break
		}
	}
	l.mu.Lock()
	l.gap = max(l.gap, time.Since(l.last))
	l.mu.Unlock()
	l.stop.Store(true)
	l.running.Wait()
	return answer{Load: &loadReport{l.talks, l.opened, l.lost, l.errs, l.longest, l.gap}}
}

// TestFlood: packets of connections that never come about, from a source each, harm neither those
// that are open nor those that begin. WEIR_FLOOD=1000000 sends that many of each kind.
func TestFlood(t *testing.T) {
	count := 60000
	if text := os.Getenv("WEIR_FLOOD"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	f := newFixtureAlone(t, ipv4)
	f.newClient("router", "172.30.0.1") // where answers to nobody end
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.apply()
	run(t, "ip -n %s route add 10.244.1.0/26 via 172.30.0.8", f.client.netns)
	mac := packet.MAC(f.n1.mac).String()
	for _, c := range []struct{ what, kind, to string }{
		{"SYNs to a node port, backend elsewhere", "syn", "172.30.0.8:30002"},
		{"SYNs to a node port, backend there", "syn", "172.30.0.8:30001"},
		{"SYNs to a pod", "syn", f.b.at("8080")},
		{"ACKs of no connection to a node port", "ack", "172.30.0.8:30002"},
		{"ACKs of no connection to a pod", "ack", f.b.at("8080")},
		{"UDP to a node port", "udp", "172.30.0.8:30001"},
	} {
		load := request{Op: "load", Net: "tcp", Addr: c.to, Size: 200, Timeout: 60_000}
		if a := f.client.call(load); a.Err != "" {
			t.Fatalf("%s: %s", c.what, a.Err)
		}
		a := f.client2.call(request{Op: "flood", Net: c.kind, Addr: c.to, Name: mac, Size: count})
		r := f.client.call(request{Op: "unload"}).Load
		if a.Err != "" || r == nil {
			t.Fatalf("%s: %s", c.what, a.Err)
		}
		t.Logf("%s: %d in %s; %d talks on 200 open connections, %d errors, the longest took %s; %d new ones, %d more that failed, none for %s at most",
			c.what, count, a.Reply, r.Talks, len(r.Errs), r.Longest.Round(time.Millisecond), r.Opened, r.Lost, r.Gap.Round(time.Millisecond))
		if len(r.Errs) > 0 {
			t.Errorf("%s: %d open connections broke, one by: %s", c.what, len(r.Errs), r.Errs[0])
		}
		// With so few packets, and on a machine that does other things, the gap says nothing of the
		// programs.
		if os.Getenv("WEIR_FLOOD") != "" && r.Gap > time.Second {
			t.Errorf("%s: no new connection for %s", c.what, r.Gap)
		}
		if r.Talks == 0 || r.Opened == 0 {
			t.Errorf("%s: nothing happened meanwhile", c.what)
		}
	}
}
