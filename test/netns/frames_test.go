// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/packet"
)

// wire is a socket that sends and sees whole frames of an interface in a namespace.
type wire struct {
	t     *testing.T
	fd    int
	index int
	mac   [6]byte
	seen  [][]byte
}

func newWire(t *testing.T, in, name string) *wire {
	t.Helper()
	w := &wire{t: t, fd: -1}
	done := make(chan error)
	go func() { // the thread is not used again: it ends with its goroutine
		runtime.LockOSThread()
		done <- w.open(in, name)
	}()
	if err := <-done; err != nil {
		t.Fatalf("frames of %s in %s: %v", name, in, err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w *wire) open(in, name string) error {
	h, err := netns.GetFromName(in)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := netns.Set(h); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	w.index, w.mac = l.Attrs().Index, [6]byte(l.Attrs().HardwareAddr)
	all := uint16(unix.ETH_P_ALL)
	all = all<<8 | all>>8
	if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all)); err != nil {
		return err
	}
	return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.index})
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
		w.t.Fatalf("sending a frame: %v", err)
	}
}

// saw reports whether a frame with the text has come in.
func (w *wire) saw(text string) bool {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			w.t.Fatalf("reading a frame: %v", err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING {
			w.seen = append(w.seen, bytes.Clone(buf[:n]))
		}
	}
	for _, f := range w.seen {
		if bytes.Contains(f, []byte(text)) {
			return true
		}
	}
	return false
}

// datagram is a frame with one of UDP.
func datagram(t *testing.T, from, to [6]byte, src, dst netip.Addr, text string, tags ...uint32) []byte {
	t.Helper()
	return datagramFrom(t, 6000, from, to, src, dst, text, tags...)
}

func datagramFrom(t *testing.T, port uint16, from, to [6]byte, src, dst netip.Addr, text string, tags ...uint32) []byte {
	t.Helper()
	p := packet.Packet{Type: packet.TypeIPv4, Kind: packet.UDP,
		IP: packet.IPv4{Src: src, Dst: dst, Proto: packet.ProtoUDP, TTL: 64}, SrcPort: port, DstPort: 7777, Payload: []byte(text)}
	if src.Is6() {
		p.Type = packet.TypeIPv6
	}
	return tagged(t, p, from, to, tags...)
}

// tagged is a packet as a frame between two MAC addresses, with tags.
func tagged(t *testing.T, p packet.Packet, from, to [6]byte, tags ...uint32) []byte {
	t.Helper()
	p.SrcMAC, p.DstMAC = packet.MAC(from), packet.MAC(to)
	b, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var head []byte
	for _, tag := range tags { // EtherType and tag
		head = binary.BigEndian.AppendUint32(head, tag)
	}
	return bytes.Join([][]byte{b[:12], head, b[12:]}, nil)
}

// Tags: the EtherType, then priority and VLAN.
const (
	tag100      = 0x81000064
	tagPriority = 0x8100a000
	tagService  = 0x88a800c8
)

// TestHostileFrames: frames with VLAN tags go neither from a pod nor to one, and nodes leave frames
// that are for others alone.
func TestHostileFrames(t *testing.T) { inBoth(t, testHostileFrames) }

func testHostileFrames(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.apply()
	f.podsReachEachOther(t)
	addr := func(a netip.Addr) netip.Addr {
		if fam == ipv6 {
			return six(a)
		}
		return a
	}
	plane, of := map[string]string{"ebpf": hostile.EBPF, "nft": hostile.NFTables}[f.dataplane()], map[family]string{ipv4: hostile.IPv4, ipv6: hostile.IPv6}[fam]
	client, pod, other, local := newWire(t, f.client.netns, "eth0"), newWire(t, f.prefix+"-a", "eth0"), newWire(t, f.prefix+"-c", "eth0"), newWire(t, f.prefix+"-b", "eth0")
	a, b, c := addr(f.a.obj.Addrs[0]), addr(f.b.obj.Addrs[0]), addr(f.c.obj.Addrs[0])
	clientAt, nobody := addr(f.client.addr), [6]byte{2, 0, 0, 0, 0, 0x99}
	gateway := [6]byte{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	from := func(tags ...uint32) func(string) []byte {
		return func(text string) []byte { return datagram(t, client.mac, f.n1.mac, clientAt, a, text, tags...) }
	}
	by := func(dst netip.Addr, tags ...uint32) func(string) []byte {
		return func(text string) []byte { return datagram(t, pod.mac, gateway, a, dst, text, tags...) }
	}
	const (
		other100 = "a frame of another VLAN on the link for a pod"
		tagged   = "a frame with a VLAN tag from a pod"
	)
	for _, attack := range []struct {
		name, variant, actor string
		from, to             *wire
		frame, plain         func(text string) []byte
	}{
		{name: other100, actor: hostile.Link, from: client, to: pod, frame: from(tag100), plain: from()},
		{name: other100, variant: "with two tags", actor: hostile.Link, from: client, to: pod, frame: from(tagService, tag100), plain: from()},
		{name: other100, variant: "behind a priority tag", actor: hostile.Link, from: client, to: pod, frame: from(tagPriority, tag100), plain: from()},
		{name: "a priority tag on the link that hides another pod's source", actor: hostile.Link, from: client, to: pod, plain: from(),
			frame: func(text string) []byte { return datagram(t, client.mac, f.n1.mac, b, a, text, tagPriority) }},
		{name: "a frame for another machine's MAC address", actor: hostile.Link, from: client, to: pod, plain: from(),
			frame: func(text string) []byte { return datagram(t, client.mac, nobody, clientAt, a, text) }},
		{name: tagged, actor: hostile.RawPod, from: pod, to: client, frame: by(clientAt, tag100), plain: by(clientAt)},
		{name: tagged, variant: "to one of another node", actor: hostile.RawPod, from: pod, to: other, frame: by(c, tag100), plain: by(c)},
		{name: tagged, variant: "with two tags", actor: hostile.RawPod, from: pod, to: client, frame: by(clientAt, tagService, tag100), plain: by(clientAt)},
		{name: tagged, variant: "to its neighbour", actor: hostile.RawPod, from: pod, to: local, frame: by(b, tag100), plain: by(b)},
	} {
		t.Run(attack.name+" "+attack.variant, func(t *testing.T) {
			hostile.Record(t, attack.name, attack.actor, plane, of)
			text := attack.name + " " + attack.variant + "."
			attack.from.send(attack.frame("hostile: " + text))
			attack.from.control(attack.to, attack.plain("plain: "+text), "plain: "+text)
			if attack.to.saw("hostile: " + text) {
				t.Errorf("it arrived")
			}
		})
	}
}

// control sends a frame that arrives, with the text: what was sent before it on the same way had
// its time.
func (w *wire) control(at *wire, frame []byte, text string) {
	w.t.Helper()
	await.Within(w.t, 20*time.Second, text, func() error {
		w.send(frame)
		if !at.saw(text) {
			return errors.New("nothing arrives")
		}
		return nil
	})
}

// TestHostileReversePath: with bpfEnforceRPF Strict nothing begins with a source whose route leads
// out by another interface.
func TestHostileReversePath(t *testing.T) { inBoth(t, testHostileReversePath) }

func testHostileReversePath(t *testing.T, fam family) {
	f := newFixture(t, fam)
	far := f.newNetns("aside")
	run(t, "ip link add eth1 netns %s type veth peer name eth0 netns %s; ip -n %s link set eth1 up; ip -n %s link set eth0 up", f.n1.netns, far, f.n1.netns, far)
	fam.ip(t, f.n1.netns, "addr add %s/%d dev eth1", fam.addr("172.30.9.1"), fam.bits()-8)
	source := netip.MustParseAddr(fam.addr("172.30.9.9"))
	f.apply()
	f.podsReachEachOther(t)
	plane, of := map[string]string{"ebpf": hostile.EBPF, "nft": hostile.NFTables}[f.dataplane()], map[family]string{ipv4: hostile.IPv4, ipv6: hostile.IPv6}[fam]
	hostile.Record(t, "a source whose route leads out by another interface", hostile.Link, plane, of)
	client, aside, pod := newWire(t, f.client.netns, "eth0"), newWire(t, far, "eth0"), newWire(t, f.prefix+"-a", "eth0")
	eth1 := parseMAC(run(t, "ip netns exec %s cat /sys/class/net/eth1/address", f.n1.netns))
	a, own := netip.MustParseAddr(fam.addr(f.a.obj.Addrs[0].String())), netip.MustParseAddr(fam.addr(f.client.addr.String()))

	forged := func(text string) []byte { return datagram(t, client.mac, f.n1.mac, source, a, text) }
	client.control(pod, forged("loose."), "loose.")
	f.cluster.Settings.RPFStrict = true
	f.apply()
	for port := range uint16(4) { // other flows than the one that is open
		frame := datagramFrom(t, 6100+port, client.mac, f.n1.mac, source, a, "hostile.")
		client.send(frame)
	}
	client.control(pod, datagram(t, client.mac, f.n1.mac, own, a, "plain."), "plain.")
	if pod.saw("hostile.") {
		t.Errorf("it arrived")
	}
	aside.control(pod, datagramFrom(t, 6200, aside.mac, eth1, source, a, "right way."), "right way.")
}
