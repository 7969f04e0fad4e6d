package agent

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
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
	l := &local{links: []linkFact{
		{name: "lo", index: 1, mtu: 65536, loopback: true, up: true, addrs: prefixes("127.0.0.1/8", "192.0.2.1/32")},
		{name: "eth0", index: 2, mtu: 9000, mac: mac, up: true, addrs: prefixes("172.31.1.8/24", "fe80::1/64")},
		{name: "eth1", index: 3, mtu: 1500, up: true, addrs: prefixes("10.9.0.2/16")},
		{name: "kube-ipvs0", index: 4, mtu: 1500, addrs: prefixes("10.96.0.1/32")},
		{name: "docker0", index: 5, mtu: 1500, up: true, addrs: prefixes("172.17.0.1/16")},
		{name: "nodelocaldns", index: 6, mtu: 1500, addrs: prefixes("169.254.20.10/32", "fe80::2/64")},
	}}
	isUplink := func(n string) bool { return strings.HasPrefix(n, "eth") }
	at := func(texts ...string) (out []netip.Addr) {
		for _, t := range texts {
			out = append(out, netip.MustParseAddr(t))
		}
		return out
	}
	m := l.machine(at("172.31.1.8"), isUplink, "cali")
	if len(m.missing) > 0 || m.mtu != 9000 || m.mac.String() != mac.String() {
		t.Errorf("%+v", m)
	}
	wantAddrs := at("10.9.0.2", "169.254.20.10", "172.17.0.1", "172.31.1.8", "192.0.2.1")
	if !slices.Equal(m.addrs, wantAddrs) {
		t.Errorf("addresses %v, want %v", m.addrs, wantAddrs)
	}
	if want := prefixes("10.9.0.0/16", "172.31.1.0/24"); !slices.Equal(m.subnets, want) {
		t.Errorf("subnets %v, want %v", m.subnets, want)
	}
	other := l.machine(at("172.31.1.9"), isUplink, "cali")
	if !slices.Equal(other.missing, at("172.31.1.9")) || other.mtu != 9000 || other.mac != nil {
		t.Errorf("with an address that is nowhere: %+v", other)
	}
	// The two families may be on two links; that of the first counts.
	l.links[2].addrs = append(l.links[2].addrs, prefixes("fd00:9::2/64")...)
	l.links[2].mac = net.HardwareAddr{2, 0, 0, 0, 0, 2}
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
		m := l.machine(tt.node, isUplink, "cali")
		if m.mtu != tt.mtu || !slices.Equal(m.missing, tt.missing) || (m.mac != nil) != (len(tt.node) > len(tt.missing)) {
			t.Errorf("%v: %+v", tt.node, m)
		}
	}
	if m := l.machine(nil, isUplink, "cali"); !slices.Contains(m.subnets, netip.MustParsePrefix("fd00:9::/64")) || !slices.Contains(m.addrs, at("fd00:9::2")[0]) {
		t.Errorf("of IPv6: %+v", m)
	}
}
