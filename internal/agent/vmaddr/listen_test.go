// SPDX-License-Identifier: Apache-2.0

package vmaddr

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/nettest"
)

var everybody = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func concat(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// arp is a frame of ARP or RARP.
func arp(etherType uint16, op byte, mac [6]byte, sender, target netip.Addr) []byte {
	return concat(everybody, mac[:], []byte{byte(etherType >> 8), byte(etherType), 0, 1, 8, 0, 6, 4, 0, op}, mac[:], sender.AsSlice(), mac[:], target.AsSlice())
}

// na is a neighbour advertisement with these flags.
func na(target netip.Addr, flags, hops byte) []byte {
	return concat([]byte{0x33, 0x33, 0, 0, 0, 1}, mac[:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, naLen, 58, hops}, target.AsSlice(), netip.MustParseAddr("ff02::1").AsSlice(),
		[]byte{advertisement, 0, 0, 0, flags, 0, 0, 0}, target.AsSlice())
}

func TestAnnounced(t *testing.T) {
	t.Parallel()
	w := announced{addrs: []netip.Addr{four, six}, mac: mac}
	other, zero := netip.MustParseAddr("10.244.1.9"), netip.IPv4Unspecified()
	for name, c := range map[string]struct {
		frame []byte
		want  bool
	}{
		"gratuitous ARP":            {arp(etherARP, 1, mac, four, four), true},
		"as an answer":              {arp(etherARP, 2, mac, four, four), true},
		"ARP for another":           {arp(etherARP, 1, mac, four, other), false},
		"probe":                     {arp(etherARP, 1, mac, zero, four), false},
		"of another address":        {arp(etherARP, 1, mac, other, other), false},
		"RARP":                      {arp(etherRARP, rarpRequest, mac, zero, zero), true},
		"RARP of another machine":   {arp(etherRARP, rarpRequest, [6]byte{2, 9}, zero, zero), false},
		"advertisement":             {na(six, 0x20, 255), true},
		"advertisement of another":  {na(netip.MustParseAddr("fd00::9"), 0x20, 255), false},
		"solicited":                 {na(six, 0x60, 255), false},
		"from beyond the link":      {na(six, 0x20, 64), false},
		"nothing":                   {nil, false},
		"ARP that is cut":           {arp(etherARP, 1, mac, four, four)[:41], false},
		"advertisement that is cut": {na(six, 0x20, 255)[:77], false},
	} {
		if got := w.by(c.frame); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestListen: announcements that come in by an interface are heard, what goes out and what is none
// is not.
func TestListen(t *testing.T) {
	if !nettest.Isolated(t) {
		return
	}
	nettest.Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host"}, PeerName: "pod"}))
	index := map[string]int{}
	for _, name := range []string{"host", "pod"} {
		l, err := netlink.LinkByName(name)
		nettest.Must(t, err)
		nettest.Must(t, netlink.LinkSetUp(l))
		index[name] = l.Attrs().Index
	}
	f, err := open(index["host"])
	nettest.Must(t, err)
	defer f.Close()
	send := func(by string, frame []byte) {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		nettest.Must(t, err)
		defer unix.Close(fd)
		nettest.Must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index[by], Halen: 6}))
	}
	plain := na(six, 0x20, 255)
	plain[14+40] = 128 // an echo request
	send("host", arp(etherARP, 1, mac, four, four))
	send("pod", plain)
	for _, frame := range [][]byte{arp(etherARP, 1, mac, four, four), arp(etherRARP, rarpRequest, mac, four, four), na(six, 0x20, 255)} {
		send("pod", frame)
		got := make([]byte, 256)
		f.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := f.Read(got)
		nettest.Must(t, err)
		if string(got[:n]) != string(frame) {
			t.Errorf("heard %x, want %x", got[:n], frame)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- announced{addrs: []netip.Addr{four}}.listen(ctx, index["host"]) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
