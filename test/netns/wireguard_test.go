// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/wireguard"
	"github.com/weir-net/weir/internal/wireguard/process"
)

// cryptDevice is a node's device of WireGuard: sockets of wireguard-go are in one folder for all
// that run on a machine.
func (n *node) cryptDevice(six bool) string {
	end := "4"
	if six {
		end = "6"
	}
	return "wg" + strings.ReplaceAll(strings.TrimPrefix(n.lan.prefix, "wn"), "-", "") + n.name + end
}

// wireGuardMain is wireguard-go for a node whose kernel has no WireGuard.
func wireGuardMain(log *slog.Logger) error {
	dir := os.Getenv("WEIR_TEST_CRYPT")
	return process.Run(context.Background(), process.Options{Log: log, RunDir: dir, StateDir: filepath.Join(dir, "process")})
}

// encrypter is what encrypts a driver's states.
func encrypter() *wireguard.Manager {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: testLevel()}))
	dir := os.Getenv("WEIR_TEST_CRYPT")
	m := wireguard.New(wireguard.Options{Log: log, StateDir: dir, RunDir: dir})
	if dir != "" {
		go m.Run(context.Background(), func() uint16 { return model.DefaultSettings().VXLANPort })
	}
	return m
}

// crypt gives a node a folder for keys and, where they are needed, devices in user space.
func (n *node) crypt() (restart func()) {
	t := n.lan.t
	dir := t.TempDir()
	n.driver.kill()
	n.driver.crypt = dir
	n.driver.start()
	var cmd *exec.Cmd
	if nettest.KernelHasWireGuard(t) {
		return func() {}
	}
	start := func() {
		cmd = exec.Command("nsenter", "--net=/run/netns/"+n.netns, os.Args[0])
		cmd.Env = append(os.Environ(), "WEIR_TEST_DRIVER=wireguard", "WEIR_TEST_CRYPT="+dir)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	kill := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	start()
	t.Cleanup(func() {
		kill()
		for _, six := range []bool{false, true} {
			os.Remove("/var/run/wireguard/" + n.cryptDevice(six) + ".sock")
		}
	})
	return func() { kill(); start() }
}

// publishes waits until the node's device is ready for peers, and publishes its key.
func (n *node) publishes() {
	t, fam := n.lan.t, n.lan.family
	inKernel := nettest.KernelHasWireGuard(t)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		n.keys = wireguard.OwnKeys(n.driver.crypt)
		_, err := os.Stat("/var/run/wireguard/" + n.cryptDevice(fam == ipv6) + ".sock")
		if (err == nil || inKernel) && n.keys.Of(fam == ipv6) != (model.WireGuardKey{}) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("node %s has no key", n.name)
		}
	}
	with := *n.lan.cluster.Nodes[n.name]
	with.WireGuard = n.keys
	n.lan.cluster.Nodes[n.name] = &with
}

// ipPacket is what is looked at of a frame.
type ipPacket struct {
	src, dst netip.Addr
	proto    byte
	l4       []byte // 8 bytes at least
}

// arrived hands over the IP packets that came in for this machine since the last time.
func (w *wire) arrived(see func(ipPacket)) {
	buf := make([]byte, 1<<16)
	for {
		k, from, err := unix.Recvfrom(w.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			w.t.Fatalf("reading a frame: %v", err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype != unix.PACKET_HOST {
			continue
		}
		f := buf[:k]
		switch kind := binary.BigEndian.Uint16(f[12:]); {
		case kind == unix.ETH_P_IP && k >= 14+20+8:
			see(ipPacket{netip.AddrFrom4([4]byte(f[26:30])), netip.AddrFrom4([4]byte(f[30:34])), f[23], f[34:]})
		case kind == unix.ETH_P_IPV6 && k >= 14+40+8:
			see(ipPacket{netip.AddrFrom16([16]byte(f[22:38])), netip.AddrFrom16([16]byte(f[38:54])), f[20], f[54:]})
		}
	}
}

// inClear returns what came in by a node's uplink that should have been encrypted: packets of the
// tunnel, and what is for somebody else.
func (w *wire) inClear(n *node, port uint16) (out []string) {
	own := n.lan.pairOf(n.addr)
	w.arrived(func(p ipPacket) {
		foreign := p.dst != own[0] && (len(own) < 2 || p.dst != own[1]) && !p.dst.IsLinkLocalUnicast()
		if foreign || p.proto == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p.l4[2:]) == port {
			out = append(out, fmt.Sprintf("to %s, protocol %d, %x", p.dst, p.proto, p.l4[:4]))
		}
	})
	return out
}

// TestWireGuard: all that nodes send to each other's pods is encrypted, whichever way it takes, and
// arrives as without: with the sender's address, and policy on what is inside.
func TestWireGuard(t *testing.T) { inBoth(t, testWireGuard) }

func testWireGuard(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.service("near", "10.96.0.1", 30001, f.a)
	f.service("far", "10.96.0.2", 30002, f.c)
	restart := map[*node]func(){}
	for _, n := range f.nodes {
		restart[n] = n.crypt()
	}
	f.apply()
	f.a.call(request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 1})
	at := map[*node]*wire{}
	for _, n := range f.nodes {
		at[n] = newWire(t, n.netns, "eth0")
	}
	clear := func() (out []string) {
		for n, w := range at {
			for _, what := range w.inClear(n, f.cluster.Settings.VXLANPort) {
				out = append(out, "at "+n.name+": "+what)
			}
		}
		return out
	}
	silent := func(when string) {
		t.Helper()
		if seen := clear(); len(seen) > 0 {
			t.Errorf("%s: %d packets went in clear: %s", when, len(seen), seen[0])
		}
	}
	f.podsReachEachOther(t)
	if len(clear()) == 0 {
		t.Fatal("the test does not see what goes in clear")
	}

	set := &f.cluster.Settings.WireGuard
	set.IPv4.Enabled, set.IPv6.Enabled = fam == ipv4, fam == ipv6
	// Where only encrypted packets may go, none goes to nodes whose keys are not known.
	set.Strict = true
	f.apply()
	clear()
	for _, nw := range networks {
		f.a.refused(nw, f.c.at("8080"))
		f.n1.refused(nw, "10.96.0.2:80")
		f.client.refused(nw, "172.30.0.8:30002")
	}
	silent("strictly, without keys")
	set.Strict = false
	f.apply()
	for _, n := range f.nodes {
		n.publishes()
	}
	f.apply()
	clear()
	all := func(when string) {
		t.Helper()
		f.podsReachEachOther(t)
		for _, nw := range networks {
			want(t, when+" Service", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
			want(t, when+" node to a Service", f.n1.reaches("c", nw, "10.96.0.2:80"), "172.30.0.8")
			want(t, when+" handed on", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
			want(t, when+" handed on, the other way", f.client.reaches("a", nw, "172.30.0.9:30001"), "172.30.0.55")
		}
		silent(when)
	}
	all("encrypted")
	f.policyHolds(t)
	silent("with a policy")
	if a := f.a.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("a connection did not survive that encryption was switched on: %s", a.Err)
	}
	fits := 1500 - 60 - 50
	if fam == ipv6 {
		fits = 1500 - 80 - 70
	}
	if fam == ipv6 && f.dataplane() == "nft" {
		// The kernel's router reports the MTU of the tunnel's device for what exceeds it, and the
		// tunnel's of what fits the device.
		f.a.call(request{Op: "probe", Net: "udp", Addr: f.c.at("8080"), Size: 1400 - 48, DF: true, Timeout: 20_000})
	}
	f.a.learns("encrypted", f.c.at("8080"), fits)
	f.a.bulk("encrypted", f.c.at("8080"))
	f.client.bulk("handed on", "172.30.0.8:30002")
	f.cluster.Settings.DSR = true
	f.apply()
	all("with direct server return")

	// The driver's process, and that of wireguard-go, may be killed.
	f.n1.driver.kill()
	f.podsReachEachOther(t)
	f.n1.driver.start()
	f.apply()
	restart[f.n1]()
	f.podsReachEachOther(t)
	silent("after processes were killed")
	if a := f.a.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("a connection did not survive that processes were killed: %s", a.Err)
	}

	set.IPv4.Enabled, set.IPv6.Enabled = false, false
	f.apply()
	f.podsReachEachOther(t)
	if a := f.a.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("a connection did not survive that encryption was switched off: %s", a.Err)
	}
}
