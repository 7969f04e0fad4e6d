// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// A family says with which addresses a test is played. The tests are written with IPv4's; played
// with IPv6, each address is given to workers as its counterpart, and what they answer is read the
// other way. The nodes carry both then, and every host, pod and Service has an address of each.
type family int

const (
	ipv4 family = 4
	ipv6 family = 6
)

// inBoth plays a test with each family, by each driver that can.
func inBoth(t *testing.T, play func(t *testing.T, fam family)) {
	t.Parallel()
	t.Run("IPv4", func(t *testing.T) { play(t, ipv4) })
	t.Run("IPv6", func(t *testing.T) { play(t, ipv6) })
	if _, skipped := nftSkips(t)[t.Name()]; skipped {
		return
	}
	playNFTables(t, play)
}

func playNFTables(t *testing.T, play func(t *testing.T, fam family)) {
	t.Run("nft-IPv4", func(t *testing.T) { play(t, ipv4) })
	t.Run("nft-IPv6", func(t *testing.T) { play(t, ipv6) })
}

// inNFTables plays a test with each family, by the nftables driver.
func inNFTables(t *testing.T, play func(t *testing.T, fam family)) {
	t.Parallel()
	playNFTables(t, play)
}

// inEBPF plays a test with each family, by the eBPF driver alone.
func inEBPF(t *testing.T, play func(t *testing.T, fam family)) {
	t.Run("ebpf-IPv4", func(t *testing.T) { play(t, ipv4) })
	t.Run("ebpf-IPv6", func(t *testing.T) { play(t, ipv6) })
}

// inEither plays a test with each family, by each driver on all nodes.
func inEither(t *testing.T, play func(t *testing.T, fam family)) {
	inEBPF(t, play)
	playNFTables(t, play)
}

// inAll plays a test with each family, by each driver on all nodes, and with nodes of both: in a
// mixed test n1 has eBPF, in a crossed one all others. Of the latter each has one family, unless
// WEIR_MATRIX asks for all.
func inAll(t *testing.T, play func(t *testing.T, fam family)) {
	inEither(t, play)
	whole := os.Getenv("WEIR_MATRIX") == "full"
	for name, fam := range map[string]family{"mixed-IPv4": ipv4, "mixed-IPv6": ipv6, "crossed-IPv4": ipv4, "crossed-IPv6": ipv6} {
		if whole || name == "mixed-IPv4" || name == "crossed-IPv6" {
			t.Run(name, func(t *testing.T) { play(t, fam) })
		}
	}
}

// nftSkips are the tests that the nftables driver cannot play, with the reasons.
func nftSkips(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("testdata/nft-skips.golden")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, reason, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || reason == "" {
			t.Fatalf("testdata/nft-skips.golden: %q has no reason", line)
		}
		out[name] = reason
	}
	return out
}

// headerMore is what a packet's header is longer by than one of IPv4, bytes; that of the tunnel is
// too.
func (fam family) headerMore() int {
	if fam == ipv6 {
		return 20
	}
	return 0
}

var counterparts = netip.MustParseAddr("fd00:6464::").As16()

// six returns the counterpart of an IPv4 address.
func six(a netip.Addr) netip.Addr {
	switch {
	case a.IsUnspecified():
		return netip.IPv6Unspecified()
	case a.IsLoopback():
		return netip.IPv6Loopback()
	}
	b, v := counterparts, a.As4()
	copy(b[12:], v[:])
	return netip.AddrFrom16(b)
}

func sixOf(a string) string { return six(netip.MustParseAddr(a)).String() }

func sixPrefix(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(six(p.Addr()), p.Bits()+96)
}

// prefix returns the prefix in the family.
func (fam family) prefix(s string) netip.Prefix {
	p := netip.MustParsePrefix(s)
	if fam == ipv6 {
		return sixPrefix(p)
	}
	return p
}

// addr returns the address in the family, as text.
func (fam family) addr(s string) string {
	if fam == ipv6 {
		return sixOf(s)
	}
	return s
}

// endpoint returns a host and port in the family; one without an address stays.
func (fam family) endpoint(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || fam != ipv6 {
		return s
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		return net.JoinHostPort(six(a).String(), port)
	}
	return s
}

var counterpart = regexp.MustCompile(`\[?(fd00:6464::[0-9a-f:]+[0-9a-f])\]?`)

// four reads counterparts in a text as the addresses of IPv4 that they mirror.
func four(s string) string {
	return counterpart.ReplaceAllStringFunc(s, func(m string) string {
		a, err := netip.ParseAddr(counterpart.FindStringSubmatch(m)[1])
		if err != nil {
			return m
		}
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:])).String()
	})
}

// pairOf returns an address, and its counterpart where the test is one of IPv6.
func (l *lan) pairOf(a netip.Addr) []netip.Addr {
	if l.family == ipv6 {
		return []netip.Addr{a, six(a)}
	}
	return []netip.Addr{a}
}

// subnets are those of a host's address.
func (l *lan) subnets(a netip.Addr) []netip.Prefix {
	p := netip.PrefixFrom(a, 24).Masked()
	if l.family == ipv6 {
		return []netip.Prefix{p, sixPrefix(p)}
	}
	return []netip.Prefix{p}
}

// addIPv6 gives the cluster pools and ranges of IPv6 alongside those of IPv4.
func (l *lan) addIPv6() {
	pool := *l.cluster.Pools["default"]
	pool.Name, pool.CIDR, pool.BlockBits = "default6", sixPrefix(pool.CIDR), 122
	l.cluster.Pools[pool.Name] = &pool
	l.cluster.ServiceCIDRs = append(l.cluster.ServiceCIDRs, sixPrefix(l.cluster.ServiceCIDRs[0]))
}

// encapsulate sets the encapsulation of all pools.
func (l *lan) encapsulate(e model.EncapMode) {
	for name, pool := range l.cluster.Pools {
		changed := *pool
		changed.VXLAN = e
		l.cluster.Pools[name] = &changed
	}
}
