// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
)

// TestWithoutIPIP: what asks for IP in IP gets VXLAN, and the state that was given stays as it is.
func TestWithoutIPIP(t *testing.T) {
	t.Parallel()
	pod, block := netip.MustParseAddr("10.244.9.9"), netip.MustParsePrefix("10.244.2.0/26")
	s := nodestate.New()
	s.Routes[block] = nodestate.Route{Pool: true, Tunnel: true, IPIP: true}
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrPod, Tunnel: true, IPIP: true}
	s.Settings.IPIP = nodestate.IPIP{Accept: true, HandOn: true, MTU: 1480}
	got := withoutIPIP(s)
	if r, a := got.Routes[block], got.Addrs[pod]; r.IPIP || a.IPIP || !r.Tunnel || !a.Tunnel || got.Settings.IPIP != (nodestate.IPIP{Replaced: true}) || !got.NeedsTunnel() {
		t.Errorf("%+v %+v %+v", r, a, got.Settings.IPIP)
	}
	if !s.Routes[block].IPIP || !s.Addrs[pod].IPIP || !s.Settings.IPIP.Accept {
		t.Error("the state that was given was changed")
	}
}

// TestIPIPTables: while a node takes IP in IP, its packets are asked for their sender before the
// rules that let pass what the uplink brings, and the device is one of the tunnel's; afterwards
// nothing of that is left. IPv6 has none of it.
func TestIPIPTables(t *testing.T) {
	d, fakes := fakeDriver(t)
	rules := func() (four, six string) {
		return fakes[knftables.IPv4Family].Dump(), fakes[knftables.IPv6Family].Dump()
	}
	apply(t, d, small())
	before, _ := rules()
	s := small()
	s.Settings.IPIP = nodestate.IPIP{Accept: true, HandOn: true, MTU: 1480}
	apply(t, d, s)
	with, with6 := rules()
	const devices = `{ "vxlan.calico", "weir-ipip" }`
	for _, want := range []string{
		"add rule ip weir from-network meta l4proto 4 iifname != " + devices + " jump ipip",
		"add rule ip weir from-network iifname " + devices + " meta mark and 0x1fff0000 == 0 drop",
		"add rule ip weir proven meta l4proto 4 iifname != " + devices + " jump ipip",
		"add rule ip weir own-source meta l4proto 4 iifname != " + devices + " jump ipip",
		"add rule ip weir ipip ip saddr . ether saddr @node-links meta mark set ip saddr map @node-marks accept",
		"add rule ip weir admit meta l4proto 4 iifname != " + devices + " meta mark and 0x1fff0000 != 0 fib daddr type local accept",
		"add rule ip weir admit-new meta l4proto 4 iifname != " + devices + " meta mark and 0x1fff0000 != 0 fib daddr type local accept",
		"size set 1440",
		"add rule ip weir pod-tunnels meta l4proto { 4, 41 } drop",
	} {
		if !strings.Contains(with, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, chain := range []string{"from-network", "proven"} {
		lines := slices.DeleteFunc(strings.Split(with, "\n"), func(l string) bool { return !strings.HasPrefix(l, "add rule ip weir "+chain+" ") })
		asked := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "jump ipip") })
		passes := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, " accept comment") })
		if asked < 0 || passes >= 0 && passes < asked {
			t.Errorf("chain %s lets packets pass by rule %d before it asks who sends IP in IP by rule %d", chain, passes, asked)
		}
	}
	for _, none := range []string{"weir-ipip", "l4proto 4 ", "jump ipip"} {
		if strings.Contains(with6, none) {
			t.Errorf("the table of IPv6 has %q", none)
		}
	}
	open := small()
	open.Settings.IPIP, open.Settings.IPIPFromPods = s.Settings.IPIP, true
	apply(t, d, open)
	if text, _ := rules(); strings.Contains(text, "{ 4, 41 } drop") || !strings.Contains(text, "pod-tunnels meta l4proto 4 ip daddr @nodes drop") || !strings.Contains(text, "pod-tunnels meta l4proto 4 ip daddr @own drop") {
		t.Error("pods may send IP in IP to nodes, or to nobody")
	}
	apply(t, d, small())
	if after, _ := rules(); after != before {
		t.Errorf("something is left:\n%s", after)
	}
}
