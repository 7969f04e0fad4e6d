// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/wireguard/process"
)

const runAs = "WEIR_TEST_WIREGUARD_PROCESS"

// TestMain is the process of wireguard-go where a test asks for it.
func TestMain(m *testing.M) {
	if device := os.Getenv(runAlone); device != "" {
		fmt.Fprintln(os.Stderr, wireGuardGo(device))
		os.Exit(1)
	}
	if dirs := os.Getenv(runAs); dirs != "" {
		run, state, _ := strings.Cut(dirs, ",")
		err := process.Run(context.Background(), process.Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), RunDir: run, StateDir: state})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A side is a node: a namespace with an end of a link, and a VXLAN device whose inner packets go to
// the other node.
type side struct {
	*nettest.Namespace
	t        *testing.T
	device   string
	addr     netip.Addr // on the link
	inner    netip.Addr
	m        *Manager
	run      string
	state    string
	proc     *exec.Cmd
	sent     int
	mtu      int  // of the device
	kernel   bool // the device is the kernel's
	received net.PacketConn
	clear    atomic.Int64 // packets of the tunnel that this node has put on the link as they are
	outer    atomic.Int64 // WireGuard's
	marker   int          // the port of those of settle that this node sends
	marks    [2]atomic.Int64
}

const (
	tunnelPort  = 4789
	firstMarker = 9
	within      = time.Minute
)

// newPair makes two nodes on one link, of one family.
func newPair(t *testing.T, six bool) (a, b *side) {
	nettest.NeedRoot(t, "devices in network namespaces")
	addrs := [2]string{"192.0.2.1", "192.0.2.2"}
	inner := [2]string{"10.1.0.1", "10.1.0.2"}
	if six {
		addrs, inner = [2]string{"2001:db8::1", "2001:db8::2"}, [2]string{"fd00:1::1", "fd00:1::2"}
	}
	sides, inKernel := [2]*side{}, nettest.KernelHasWireGuard(t)
	for i := range sides {
		s := &side{Namespace: nettest.New(t, fmt.Sprint("node ", i)), t: t, marker: firstMarker + i, device: fmt.Sprintf("wt%d%s", i, unique(t)),
			addr: netip.MustParseAddr(addrs[i]), inner: netip.MustParseAddr(inner[i]), run: t.TempDir(), state: t.TempDir(), mtu: 1420, kernel: inKernel}
		s.open()
		sides[i] = s
	}
	a, b = sides[0], sides[1]
	a.Do(t, "a link", func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up", MTU: 1500}, PeerName: "up", PeerNamespace: netlink.NsFd(b.FD)})
	})
	a.dress(b)
	b.dress(a)
	return a, b
}

// unique is a part of names of devices that no other run of these tests has: the sockets of
// wireguard-go are in one folder for all of them.
func unique(t *testing.T) string {
	return fmt.Sprintf("%x%x", os.Getpid()&0xffff, len(t.Name())&0xf)
}

func (s *side) open() {
	s.m = New(Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), StateDir: s.state, RunDir: s.run})
}

func (s *side) dress(other *side) {
	s.Do(s.t, "addresses", func() error {
		bits := s.addr.BitLen() - 8
		set := func(name string, a netip.Addr) error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetUp(l), netlink.AddrAdd(l, &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}))
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "vx", 1300
		lo, err := netlink.LinkByName("lo")
		return errors.Join(err, netlink.LinkSetUp(lo), set("up", s.addr),
			netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 4096, Port: tunnelPort, SrcAddr: s.addr.AsSlice(), Group: other.addr.AsSlice()}),
			set("vx", s.inner), s.sniff(), s.receive())
	})
}

// sniff counts what passes the link, in both directions.
func (s *side) sniff() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(uint16(unix.ETH_P_ALL>>8|unix.ETH_P_ALL<<8)))
	if err != nil {
		return err
	}
	l, err := netlink.LinkByName("up")
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8), Ifindex: l.Attrs().Index})
	}
	if err != nil {
		return err
	}
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	s.t.Cleanup(func() { close(done); <-ended; unix.Close(fd) })
	head := 20
	if s.addr.Is6() {
		head = 40
	}
	go func() {
		defer close(ended)
		b := make([]byte, 2048)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil || n < head+8 {
				continue
			}
			switch port := int(b[head+2])<<8 | int(b[head+3]); {
			case b[0]>>4 == 4 && b[9] != unix.IPPROTO_UDP, b[0]>>4 == 6 && b[6] != unix.IPPROTO_UDP:
			case port == tunnelPort:
				if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
					s.clear.Add(1)
				}
			case port == 51820:
				s.outer.Add(1)
			case port == firstMarker || port == firstMarker+1:
				s.marks[port-firstMarker].Add(1)
			}
		}
	}()
	return nil
}

func (s *side) receive() (err error) {
	s.received, err = net.ListenPacket("udp", netip.AddrPortFrom(s.inner, 7).String())
	if err == nil {
		s.t.Cleanup(func() { s.received.Close() })
	}
	return err
}

// settle waits until both nodes have counted what was on the link before: a datagram of each comes
// after it.
func settle(a, b *side) {
	a.t.Helper()
	sides := []*side{a, b}
	var before [2][2]int64
	for i, s := range sides {
		before[i] = [2]int64{s.marks[0].Load(), s.marks[1].Load()}
	}
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		seen := true
		for i, s := range sides {
			seen = seen && s.marks[0].Load() > before[i][0] && s.marks[1].Load() > before[i][1]
		}
		if seen {
			return
		}
		a.sendTo(netip.AddrPortFrom(b.addr, uint16(a.marker)))
		b.sendTo(netip.AddrPortFrom(a.addr, uint16(b.marker)))
	}
	a.t.Fatal("the listeners do not see what is on the link")
}

// send sends one datagram to a node's inner address.
func (s *side) send(to *side) {
	s.sent++
	s.sendTo(netip.AddrPortFrom(to.inner, 7))
}

func (s *side) sendTo(to netip.AddrPort) {
	s.Do(s.t, "sending", func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = fmt.Fprint(c, s.sent) // whether it goes is what the receiver says
		return nil
	})
}

// reaches sends datagrams until one arrives.
func (s *side) reaches(to *side, when string) {
	s.t.Helper()
	b, first := make([]byte, 64), s.sent+1
	for end := time.Now().Add(within); time.Now().Before(end); {
		s.send(to)
		_ = to.received.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		for n, err := 0, error(nil); err == nil; { // what came late is there, too
			if n, _, err = to.received.ReadFrom(b); err == nil {
				if number, _ := strconv.Atoi(string(b[:n])); number >= first { // of this call, however late
					return
				}
			}
		}
	}
	s.t.Fatalf("%s: nothing arrives at %s; errors %v", when, to.inner, s.m.Status())
}

// apply has a state with these peers encrypted, and then what is not needed any more removed.
func (s *side) apply(on bool, peers ...*side) *nodestate.State {
	s.t.Helper()
	st := nodestate.New()
	st.Settings.Tunnel.Port = tunnelPort
	w := nodestate.WireGuard{Interface: s.device, Port: 51820, MTU: s.mtu, RulePriority: 99, Peers: map[netip.Addr]nodestate.WireGuardPeer{}}
	for _, p := range peers {
		w.Peers[p.addr] = nodestate.WireGuardPeer{Node: p.device, Key: p.key()}
	}
	if on && s.addr.Is6() {
		st.WireGuard6 = w
	} else if on {
		st.WireGuard4 = w
	}
	s.Do(s.t, "a state", func() error {
		err := errors.Join(s.m.Before(st), s.m.After(st))
		s.m.check(tunnelPort)
		return err
	})
	return st
}

func (s *side) key() model.WireGuardKey {
	st := s.m.Status()
	if st == nil {
		return model.WireGuardKey{}
	}
	return st.Keys.Of(s.addr.Is6())
}

// ready waits until a device is as it should be.
func (s *side) ready(peers ...*side) {
	s.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		s.apply(true, peers...)
		st := s.m.Status()
		if len(st.Errs) == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s: %v", s.device, st.Errs)
		}
	}
}

// start runs wireguard-go for the node, where its kernel has no WireGuard.
func (s *side) start() {
	s.t.Helper()
	if s.kernel {
		return
	}
	s.process(runAs + "=" + s.run + "," + filepath.Join(s.state, "process"))
}

func (s *side) process(what string) {
	s.t.Helper()
	s.Do(s.t, "wireguard-go", func() error {
		s.proc = exec.Command("/proc/self/exe")
		s.proc.Env = append(os.Environ(), what)
		s.proc.Stderr = os.Stderr
		return s.proc.Start()
	})
	s.t.Cleanup(s.kill)
}

func (s *side) kill() {
	if s.proc != nil {
		_ = s.proc.Process.Kill()
		_ = s.proc.Wait()
		s.proc = nil
		os.Remove("/var/run/wireguard/" + s.device + ".sock")
	}
}

// silent holds that nothing of the tunnel was on the link in clear.
func silent(t *testing.T, when string, a, b *side) {
	t.Helper()
	settle(a, b)
	for _, s := range []*side{a, b} {
		if n := s.clear.Load(); n > 0 {
			t.Fatalf("%s: %d packets of the tunnel went in clear from %s", when, n, s.addr)
		}
	}
}

func TestEncryptsBetweenNodes(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			a, b := newPair(t, six)
			a.reaches(b, "without encryption")
			if settle(a, b); a.clear.Load() == 0 {
				t.Fatal("the test does not see the tunnel's packets on the link")
			}
			a.start()
			b.start()
			a.ready()
			b.ready()
			if by := a.m.Status().By; (by == InKernel) != a.kernel {
				t.Errorf("%s encrypts; WireGuard in the kernel: %t", by, a.kernel)
			}
			if a.key() == (model.WireGuardKey{}) || a.key() == b.key() {
				t.Fatalf("keys %s and %s", a.key(), b.key())
			}
			info, err := os.Stat(keyFile(Folder(a.state), six))
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the private key: %v, %v", info, err)
			}
			a.ready(b)
			settle(a, b)
			a.clear.Store(0)
			a.send(b) // b does not know a yet
			b.ready(a)
			settle(a, b)
			b.clear.Store(0) // its kernel may have sent something, of multicast
			a.reaches(b, "with encryption")
			b.reaches(a, "with encryption")
			silent(t, "with encryption", a, b)
			if a.outer.Load() == 0 {
				t.Error("nothing of WireGuard is on the link")
			}

			// What is left of wireguard-go when it is killed drops; it goes on where it was,
			// with no agent to help it.
			a.kill()
			for range 5 {
				a.send(b)
			}
			silent(t, "while wireguard-go is not there", a, b)
			a.start()
			a.reaches(b, "after wireguard-go was killed")
			silent(t, "after wireguard-go was killed", a, b)

			// Another agent finds it as it should be, and writes nothing anew.
			a.open()
			a.ready(b)
			a.reaches(b, "after the agent was replaced")

			// Somebody deletes the routes: nothing goes in clear, and they come back.
			a.Do(t, "deleting routes", func() error { return ensureRoutes(six, 0, nil) })
			a.send(b)
			silent(t, "without routes", a, b)
			a.ready(b)
			a.reaches(b, "with routes again")

			// Another key.
			before := a.key()
			if err := RemoveKeys(a.state); err != nil {
				t.Fatal(err)
			}
			a.ready(b)
			if a.key() == before {
				t.Fatal("the node kept its key")
			}
			b.ready(a)
			a.reaches(b, "with another key")
			silent(t, "with another key", a, b)

			// A peer without a key gets nothing.
			st := a.apply(true)
			peers := map[netip.Addr]nodestate.WireGuardPeer{b.addr: {Node: "b"}}
			st.WireGuard4.Peers, st.WireGuard6.Peers = peers, peers
			a.Do(t, "a peer without a key", func() error { return errors.Join(a.m.Before(st), a.m.After(st)) })
			settle(a, b)
			a.clear.Store(0)
			b.clear.Store(0)
			for range 3 {
				a.send(b)
			}
			silent(t, "to a peer without a key", a, b)

			// Nor is anything taken in clear of a peer.
			a.apply(false)
			b.ready(a)
			drain(b.received)
			for range 3 {
				a.send(b)
			}
			_ = b.received.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			if n, _, err := b.received.ReadFrom(make([]byte, 64)); err == nil {
				t.Errorf("a packet that came in clear was taken: %d bytes", n)
			}

			b.apply(false)
			a.reaches(b, "after encryption was switched off")
			for _, s := range []*side{a, b} {
				s.Do(t, "looking for what is left", func() error { return nothingLeft(s, six) })
			}
		})
	}
}

func drain(c net.PacketConn) {
	for {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, err := c.ReadFrom(make([]byte, 64)); err != nil {
			return
		}
	}
}

// nothingLeft holds that a node where encryption is off is as it was.
func nothingLeft(s *side, six bool) error {
	if l, err := netlink.LinkByName(s.device); err == nil {
		return fmt.Errorf("the device %s is left", l.Attrs().Name)
	}
	rules, err := kernel.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(familyNumber(six)) })
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Table == RouteTable {
			return fmt.Errorf("the rule %v is left", r)
		}
	}
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil || strings.Contains(string(out), Table) {
		return fmt.Errorf("the table is left: %s (%w)", out, err)
	}
	return nil
}

// What somebody else has is left alone, and named.
func TestLeavesOthersAlone(t *testing.T) {
	a, b := newPair(t, false)
	a.start()
	var theirs net.PacketConn
	a.Do(t, "a port of somebody else", func() (err error) {
		theirs, err = net.ListenPacket("udp", ":51820")
		return err
	})
	var errs []error
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		a.apply(true, b)
		if errs = a.m.Status().Errs; len(errs) == 1 && errors.Is(errs[0], ErrForeign) {
			break
		}
	}
	if len(errs) != 1 || !errors.Is(errs[0], ErrForeign) || !strings.Contains(errs[0].Error(), "51820") || a.key() != (model.WireGuardKey{}) {
		t.Fatalf("a port that somebody else has: %v, key %q", errs, a.key())
	}
	theirs.Close()
	a.ready(b)

	a.apply(false)
	a.kill()
	a.Do(t, "a device of somebody else", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.device
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other"})
	})
	a.start()
	a.apply(true, b)
	if errs := a.m.Status().Errs; len(errs) != 1 || !errors.Is(errs[0], ErrForeign) || !strings.Contains(errs[0].Error(), a.device) {
		t.Fatalf("a device that somebody else has: %v", errs)
	}
	a.apply(false)
	a.Do(t, "their device", func() error {
		l, err := netlink.LinkByName(a.device)
		if err == nil && (l.Type() != "veth" || l.Attrs().Flags&net.FlagUp != 0) {
			err = fmt.Errorf("it is a %s now, flags %v", l.Type(), l.Attrs().Flags)
		}
		return err
	})
}
