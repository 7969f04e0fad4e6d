// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
)

// A door counts what comes to a port, by the name of who sends it, and answers; SYNs, answered or
// not, by the address. Who knocks sends without a pause, whatever becomes of it: datagrams by turns
// from a port that stays, whose flow has been answered once, and from a new one; or opens TCP
// connections.

var (
	doorMu  sync.Mutex
	arrived = map[string]int{}
	knocks  = map[int]func(){}
)

func noteArrival(who string) {
	doorMu.Lock()
	defer doorMu.Unlock()
	arrived[strings.TrimSpace(who)]++
}

func openDoor(r request) error {
	if r.Net == "udp" {
		return serveDatagrams(r.Addr, nil, func(said []byte, from asker) {
			noteArrival(string(said))
			from.Write(said)
		})
	}
	l, err := net.Listen("tcp", r.Addr)
	if err != nil {
		return err
	}
	for _, nw := range []string{"ip4:tcp", "ip6:tcp"} {
		if err := countSYNs(nw, l.Addr().(*net.TCPAddr).Port); err != nil {
			return err
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			noteArrival("somebody") // also who says nothing
			go func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(await.Patience))
				if who, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					noteArrival(who)
				}
			}()
		}
	}()
	return nil
}

// countSYNs notes the SYNs that come to a port, before TCP has them.
func countSYNs(nw string, port int) error {
	pc, err := net.ListenPacket(nw, "")
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 256)
		for {
			n, from, err := pc.ReadFrom(buf) // from the header of TCP on
			if err != nil {
				return
			}
			const syn, ack = 0x02, 0x10
			if n >= 20 && int(binary.BigEndian.Uint16(buf[2:])) == port && buf[13]&(syn|ack) == syn {
				noteArrival("SYN from " + from.String())
			}
		}
	}()
	return nil
}

// knock knocks every r.Every milliseconds until it is ended.
func knock(r request) answer {
	ctx, stop := context.WithCancel(context.Background())
	every := time.Duration(r.Every) * time.Millisecond
	var all sync.WaitGroup
	said := []byte(r.Name + "\n")
	if r.Net == "udp" {
		stays, err := net.Dial("udp", r.Addr)
		if err != nil {
			stop()
			return fromErr(err)
		}
		all.Go(func() {
			defer stays.Close()
			for ctx.Err() == nil {
				stays.Write(said)
				if c, err := net.Dial("udp", r.Addr); err == nil {
					c.Write(said)
					c.Close()
				}
				time.Sleep(every)
			}
		})
	} else {
		all.Go(func() {
			for ctx.Err() == nil {
				each, over := context.WithTimeout(ctx, 10*every) // so one SYN goes out each time
				if c, err := new(net.Dialer).DialContext(each, "tcp", r.Addr); err == nil {
					c.Write(said)
					c.Close()
				}
				over()
				time.Sleep(every)
			}
		})
	}
	knocks[r.ID] = func() {
		stop()
		all.Wait()
	}
	return answer{}
}

// arrivals are what came to the process's doors so far.
func arrivals() answer {
	doorMu.Lock()
	defer doorMu.Unlock()
	return answer{Arrived: maps.Clone(arrived)}
}

// TestSwitchDenied: what policy denies arrives at no moment of four changes of the data plane, of
// ten with WEIR_SWITCH: datagrams of open flows and of new ones, and connections, between pods on
// one node and on two, by Services, from outside and to there.
func TestSwitchDenied(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) { testSwitchDenied(t, fam) })
	}
}

func testSwitchDenied(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	for _, s := range []struct {
		name, ip string
		port     uint16
		pod      *pod
	}{{"near", "10.96.0.1", 30001, f.b}, {"far", "10.96.0.2", 30002, f.c}, {"of-a", "10.96.0.3", 30003, f.a}} {
		f.service(s.name, s.ip, s.port, s.pod)
		f.slices(s.name, 9090, f.cluster.Slices[model.Name{Namespace: "default", Name: s.name}].Endpoints)
	}
	f.apply()
	doors := []*worker{f.a.worker, f.b.worker, f.c.worker, f.client.worker}
	for _, w := range doors {
		for _, nw := range networks {
			if a := w.call(request{Op: "door", Net: nw, Addr: ":9090"}); a.Err != "" {
				t.Fatalf("%s: %s", w.name, a.Err)
			}
		}
	}
	var names []string
	for _, k := range []struct {
		w    *worker
		addr string
	}{
		{f.a.worker, f.b.at("9090")}, {f.a.worker, f.c.at("9090")}, {f.a.worker, "10.96.0.1:80"}, {f.a.worker, "10.96.0.2:80"},
		{f.client.worker, "172.30.0.8:30001"}, {f.client.worker, "172.30.0.9:30001"}, {f.client.worker, "172.30.0.8:30002"}, {f.client.worker, "172.30.0.9:30002"},
		{f.d.worker, f.a.at("9090")}, {f.d.worker, "10.96.0.3:80"}, {f.d.worker, "172.30.0.55:9090"},
	} {
		for _, nw := range networks {
			name := fmt.Sprintf("%s->%s-%s", k.w.name, nw, k.addr)
			if a := k.w.call(request{Op: "knock", ID: len(names), Net: nw, Addr: k.addr, Name: name, Every: 8}); a.Err != "" {
				t.Fatalf("%s: %s", name, a.Err)
			}
			names = append(names, name)
		}
	}
	came := func() map[string]int {
		sum := map[string]int{}
		for _, w := range doors {
			for name, n := range w.call(request{Op: "arrivals"}).Arrived {
				sum[name] += n
			}
		}
		return sum
	}
	allCome := func(when string) {
		t.Helper()
		before := came()
		await.That(t, when, func() error {
			now := came()
			for _, name := range names {
				if now[name] < before[name]+3 {
					return fmt.Errorf("%s comes %d times", name, now[name]-before[name])
				}
			}
			return nil
		})
	}
	allCome("before they are denied")
	if all := came(); !slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(name string) bool { return strings.HasPrefix(name, "SYN from ") }) {
		t.Fatalf("no SYN is counted: %v", all)
	}
	f.shut()
	f.apply()
	var denied map[string]int
	await.That(t, "what was under way is over", func() error { // a busy machine keeps packets in its queues
		denied = came()
		time.Sleep(500 * time.Millisecond)
		if now := came(); !maps.Equal(now, denied) {
			return fmt.Errorf("%v come, %v came", now, denied)
		}
		return nil
	})
	turns := 4 // each node goes there and back
	if strictSwitch() {
		turns = 10
	}
	for i := range turns + 1 { // the last time nothing changes: what was under way in the one before is looked for
		n := []*node{f.n1, f.n2, f.n2, f.n1}[i%4]
		plane := []string{"nft", "nft", "ebpf", "ebpf"}[i%4]
		if i < turns {
			n.switchTo(plane)
			time.Sleep(100 * time.Millisecond)
		} else {
			time.Sleep(500 * time.Millisecond)
		}
		now := came()
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if now[name] != denied[name] {
				t.Errorf("%d: while %s went over to %s there came %d of %s", i, n.name, plane, now[name]-denied[name], name)
			}
		}
		denied = now
	}
	for _, app := range []string{"b", "c", "d"} {
		delete(f.cluster.Policies, allow(app).ID())
	}
	f.apply()
	allCome("when they are allowed again") // so they knocked all the time
}

// shut lets nothing come to pods b and c, and nothing leave d.
func (f *fixture) shut() {
	for _, app := range []string{"b", "c", "d"} {
		p := allow(app)
		p.Ingress = nil
		if app == "d" {
			p.AppliesIngress, p.AppliesEgress = false, true
		}
		f.cluster.Policies[p.ID()] = p
	}
}
