// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// stream sends numbered datagrams from one node to another until it is stopped.
type stream struct {
	name     string
	sent     atomic.Uint64
	seen     sync.Map
	received atomic.Uint64
	longest  atomic.Int64 // pause between two that arrived, nanoseconds
	stop     func()
}

const (
	streamPort = 11
	// every is between two datagrams: a device keeps 128 of them for a peer without a session, so
	// that the machine may stop for two seconds.
	every = 20 * time.Millisecond
)

func newStream(t *testing.T, name string, from, to *side) *stream {
	t.Helper()
	s := &stream{name: name}
	var in net.PacketConn
	var out net.Conn
	to.Do(t, "a socket", func() (err error) {
		in, err = net.ListenPacket("udp", netip.AddrPortFrom(to.inner, streamPort).String())
		return err
	})
	from.Do(t, "a socket", func() (err error) {
		out, err = net.Dial("udp", netip.AddrPortFrom(to.inner, streamPort).String())
		return err
	})
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if _, err := out.Write(binary.BigEndian.AppendUint64(nil, s.sent.Load())); err == nil {
				s.sent.Add(1)
			}
		}
	})
	all.Go(func() {
		b := make([]byte, 64)
		last := time.Now()
		for {
			n, _, err := in.ReadFrom(b)
			if err != nil {
				return
			}
			s.longest.Store(max(s.longest.Load(), int64(time.Since(last))))
			last = time.Now()
			if _, was := s.seen.LoadOrStore(string(b[:n]), true); !was {
				s.received.Add(1)
			}
		}
	})
	s.stop = sync.OnceFunc(func() {
		close(done)
		for end := time.Now().Add(within / 4); time.Now().Before(end) && s.received.Load() < s.sent.Load(); {
			time.Sleep(10 * time.Millisecond)
		}
		in.Close()
		out.Close()
		all.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

// lost are the datagrams that did not arrive, of the first 10 that did not.
func (s *stream) lost() (out []uint64) {
	for i := range s.sent.Load() {
		if _, is := s.seen.Load(string(binary.BigEndian.AppendUint64(nil, i))); !is && len(out) < 10 {
			out = append(out, i)
		}
	}
	return out
}

// goesOn waits until more has arrived.
func (s *stream) goesOn(t *testing.T, when string) {
	t.Helper()
	from := s.received.Load()
	until(t, when+": what is sent "+s.name+" arrives", func() bool { return s.received.Load() > from+10 })
}

// until waits for something.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// runs has a node look after its devices.
func (s *side) runs(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Setns(s.FD, unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		if err := s.m.Run(ctx, func() uint16 { return tunnelPort }); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// tell gives a node a state in which the other one has these keys.
func (s *side) tell(t *testing.T, other *side, key, next model.WireGuardKey) {
	t.Helper()
	st := nodestate.New()
	st.Settings.Tunnel.Port = tunnelPort
	w := nodestate.WireGuard{Interface: s.device, Port: 51820, MTU: s.mtu, RulePriority: 99,
		Peers: map[netip.Addr]nodestate.WireGuardPeer{other.addr: {Node: other.device, Key: key, Next: next}}}
	if s.addr.Is6() {
		st.WireGuard6 = w
	} else {
		st.WireGuard4 = w
	}
	s.Do(t, "a state", func() error {
		if err := s.m.Before(st); err != nil {
			return err
		}
		return s.m.After(st)
	})
}

// has reports whether a node's device has a peer of a key, and whether that is silent.
func (s *side) has(t *testing.T, key model.WireGuardKey) (there, silent bool) {
	t.Helper()
	s.Do(t, "reading the device", func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		d, err := c.Device(s.device)
		if err != nil {
			return err
		}
		for i := range d.Peers {
			if p := &d.Peers[i]; model.WireGuardKey(p.PublicKey) == key {
				there, silent = true, isSilent(p)
			}
		}
		return nil
	})
	return there, silent
}

// TestRotate: a node changes its key while datagrams go both ways; none is lost, none goes in
// clear, and the other node uses the new key before it is told that it is the node's.
func TestRotate(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			a, b := newPair(t, six)
			a.start()
			b.start()
			a.ready()
			b.ready()
			a.ready(b)
			b.ready(a)
			a.runs(t)
			b.runs(t)
			a.reaches(b, "with encryption")
			b.reaches(a, "with encryption")
			settle(a, b)
			a.clear.Store(0)
			b.clear.Store(0)
			there, back := newStream(t, "there", a, b), newStream(t, "back", b, a)
			var events []string
			happened := func(what string) {
				events = append(events, fmt.Sprintf("%s at %d and %d", what, there.sent.Load(), back.sent.Load()))
			}
			for range 3 {
				before := a.key()
				of := model.WireGuardKeys{}.With(six, before)
				if err := a.m.Prepare(model.WireGuardKeys{}.With(six, b.key())); err != nil || a.m.Status().Next != (model.WireGuardKeys{}) {
					t.Fatalf("a key that is not the node's is replaced: %v, %v", a.m.Status().Next, err)
				}
				if err := a.m.Prepare(of); err != nil {
					t.Fatal(err)
				}
				next := a.m.Status().Next
				if next.Of(six) == (model.WireGuardKey{}) || next.Of(six) == before || next.Of(!six) != (model.WireGuardKey{}) {
					t.Fatalf("the next keys are %v", next)
				}
				if err := a.m.Prepare(of); err != nil || a.m.Status().Next != next {
					t.Fatalf("asked again the node makes another key: %v", err)
				}
				if info, err := os.Stat(nextKeyFile(Folder(a.state), six)); err != nil || info.Mode().Perm() != 0o600 {
					t.Fatalf("the next private key: %v, %v", info, err)
				}
				b.tell(t, a, before, next.Of(six))
				until(t, "a silent peer", func() bool { there, silent := b.has(t, next.Of(six)); return there && silent })
				there.goesOn(t, "before the change")
				back.goesOn(t, "before the change")
				happened("changed")
				a.Do(t, "changing the key", func() error { return a.m.Switch(next, tunnelPort) })
				if a.key() != next.Of(six) || a.m.Status().Next != (model.WireGuardKeys{}) {
					t.Fatalf("the node's key is %s", a.key())
				}
				until(t, "the peer with the next key", func() bool { there, silent := b.has(t, next.Of(six)); return there && !silent })
				happened("moved")
				there.goesOn(t, "after the change")
				back.goesOn(t, "after the change")
				happened("told")
				b.tell(t, a, next.Of(six), model.WireGuardKey{})
				if there, _ := b.has(t, before); there {
					t.Error("the key of before is left")
				}
				there.goesOn(t, "when the key is published")
				back.goesOn(t, "when the key is published")
				silent(t, "while the key is changed", a, b)
			}
			for _, s := range []*stream{there, back} {
				s.stop()
				nettest.Figure(t, "changed keys of WireGuard: packets lost "+s.name, float64(s.sent.Load()-s.received.Load()))
				nettest.Figure(t, "changed keys of WireGuard: longest pause "+s.name+", ms", float64(s.longest.Load())/1e6)
				// With the kernel's device in an emulator one was lost in three runs of some
				// 1,100 each; why is not known.
				allowed := uint64(0)
				if a.kernel {
					allowed = 3
				}
				if s.sent.Load() > s.received.Load()+allowed {
					t.Errorf("%s: %d datagrams were sent, %d arrived, not %v: %v", s.name, s.sent.Load(), s.received.Load(), s.lost(), events)
				}
			}
		})
	}
}
