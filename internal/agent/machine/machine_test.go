// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestMachine(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	l := &Watcher{links: []Link{
		{Name: "lo", Index: 1, MTU: 65536, Loopback: true, Up: true, Addrs: prefixes("127.0.0.1/8", "192.0.2.1/32")},
		{Name: "eth0", Index: 2, MTU: 9000, MAC: mac, Up: true, Addrs: prefixes("172.31.1.8/24", "fe80::1/64")},
		{Name: "eth1", Index: 3, MTU: 1500, Up: true, Addrs: prefixes("10.9.0.2/16")},
		{Name: "kube-ipvs0", Index: 4, MTU: 1500, Addrs: prefixes("10.96.0.1/32")},
		{Name: "docker0", Index: 5, MTU: 1500, Up: true, Addrs: prefixes("172.17.0.1/16")},
		{Name: "nodelocaldns", Index: 6, MTU: 1500, Addrs: prefixes("169.254.20.10/32", "fe80::2/64")},
	}}
	isUplink := func(n string) bool { return strings.HasPrefix(n, "eth") }
	at := func(texts ...string) (out []netip.Addr) {
		for _, t := range texts {
			out = append(out, netip.MustParseAddr(t))
		}
		return out
	}
	m := l.Facts(at("172.31.1.8"), isUplink, "cali")
	if len(m.Missing) > 0 || m.MTU != 9000 || m.MAC.String() != mac.String() {
		t.Errorf("%+v", m)
	}
	wantAddrs := at("10.9.0.2", "169.254.20.10", "172.17.0.1", "172.31.1.8", "192.0.2.1")
	if !slices.Equal(m.Addrs, wantAddrs) {
		t.Errorf("addresses %v, want %v", m.Addrs, wantAddrs)
	}
	if want := prefixes("10.9.0.0/16", "172.31.1.0/24"); !slices.Equal(m.Subnets, want) {
		t.Errorf("subnets %v, want %v", m.Subnets, want)
	}
	if got := fmt.Sprint(m.Interfaces()); got != "[{eth0 [172.31.1.8]} {eth1 [10.9.0.2]} {docker0 [172.17.0.1]} {nodelocaldns [169.254.20.10]}]" {
		t.Errorf("reported interfaces %s", got)
	}
	other := l.Facts(at("172.31.1.9"), isUplink, "cali")
	if !slices.Equal(other.Missing, at("172.31.1.9")) || other.MTU != 9000 || other.MAC != nil {
		t.Errorf("with an address that is nowhere: %+v", other)
	}
	// The two families may be on two links; that of the first counts.
	l.links[2].Addrs = append(l.links[2].Addrs, prefixes("fd00:9::2/64")...)
	l.links[2].MAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	for _, tt := range []struct {
		node    []netip.Addr
		mtu     int
		missing []netip.Addr
	}{
		{at("172.31.1.8", "fd00:9::2"), 9000, nil},
		{at("172.31.1.9", "fd00:9::2"), 1500, at("172.31.1.9")},
		{at("172.31.1.8", "fd00:9::3"), 9000, at("fd00:9::3")},
		{at("fd00:9::2"), 1500, nil},
		{nil, 9000, nil},
	} {
		m := l.Facts(tt.node, isUplink, "cali")
		if m.MTU != tt.mtu || !slices.Equal(m.Missing, tt.missing) || (m.MAC != nil) != (len(tt.node) > len(tt.missing)) {
			t.Errorf("%v: %+v", tt.node, m)
		}
	}
	if m := l.Facts(nil, isUplink, "cali"); !slices.Contains(m.Subnets, netip.MustParsePrefix("fd00:9::/64")) || !slices.Contains(m.Addrs, at("fd00:9::2")[0]) {
		t.Errorf("of IPv6: %+v", m)
	}
}

// What is reported of interfaces is bounded.
func TestManyInterfaces(t *testing.T) {
	var m Facts
	for i := range 2 * weirv1.MaxInterfaces {
		l := model.LocalInterface{Name: fmt.Sprint("eth", i)}
		for k := range i {
			l.Addrs = append(l.Addrs, netip.AddrFrom4([4]byte{10, 0, byte(i), byte(k)}))
		}
		m.Links = append(m.Links, l)
	}
	got := m.Interfaces()
	if len(got) != weirv1.MaxInterfaces || got[0].Name != "eth1" || len(got[weirv1.MaxInterfaces-1].Addresses) != weirv1.MaxInterfaceAddresses {
		t.Errorf("reported %v", got)
	}
}
