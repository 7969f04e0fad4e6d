// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/test/cells"
)

// What is asked of every mode, of both families and data planes.
var asked = []string{"pod", "Service", "NodePort", "DSR", "policy", "why", "live change"}

const (
	ebpf     = "eBPF"
	nftables = "nftables"
	process  = "weir-bgp" // whichever the data plane
)

// asks are all of them.
func asks() []cells.Cell {
	var out []cells.Cell
	add := func(mode, family, plane, test, why string, what ...string) {
		for _, w := range what {
			out = append(out, cells.Cell{Mode: mode, Family: family, Plane: plane, What: w, Test: test, Why: why})
		}
	}
	const netns, bgp, scenarios = "test/netns ", "internal/bgp/process ", "test/scenarios "
	for _, of := range []struct{ family, plane, test string }{
		{"IPv4", ebpf, "/IPv4"}, {"IPv6", ebpf, "/IPv6"}, {"IPv4", nftables, "/nft-IPv4"}, {"IPv6", nftables, "/nft-IPv6"},
	} {
		add("WireGuard", of.family, of.plane, netns+"TestWireGuard"+of.test, "", "pod", "Service", "NodePort", "DSR", "policy", "live change")
		add("WireGuard", of.family, of.plane, netns+"TestWireGuardHosts"+of.test, "", "what nodes exchange")
		add("WireGuard", of.family, of.plane, netns+"TestWhyModes"+of.test, "", "why")
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		add("WireGuard", family, "wireguard-go", "internal/wireguard TestEncryptsBetweenNodes/"+family, "", "nothing in clear")
		add("WireGuard", family, "wireguard-go", "internal/wireguard TestRotate/"+family, "", "another key, no packet lost")
	}
	add("WireGuard", "IPv4", "wireguard-go", "internal/wireguard TestThroughput", "", "throughput")
	add("IP in IP", "IPv4", ebpf, netns+"TestIPIP/ebpf-routed", "", "pod", "Service", "NodePort", "policy")
	add("IP in IP", "IPv4", ebpf, scenarios+"TestPrograms/ipip", "", "DSR")
	add("IP in IP", "IPv4", ebpf, netns+"TestIPIPLive/ebpf-IPv4", "", "live change")
	add("IP in IP", "IPv4", ebpf, scenarios+"TestPrograms/hostile-ipip", "", "no injection")
	add("IP in IP", "IPv4", ebpf, netns+"TestWhyModes/IPv4", "", "why")
	for _, of := range []struct{ what, test string }{{"a node beside it without the device", "mixed-link"}, {"one behind a router", "mixed-routed"}} {
		add("IP in IP", "IPv4", ebpf, netns+"TestIPIPReplaced/"+of.test, "", of.what)
	}
	add("IP in IP", "IPv4", ebpf, netns+"TestIPIPThroughput/ebpf-IPv4", "", "throughput")
	for _, of := range []struct{ family, plane, sub string }{
		{"IPv4", ebpf, "/IPv4"}, {"IPv6", ebpf, "/IPv6"}, {"IPv4", nftables, "/nft-IPv4"}, {"IPv6", nftables, "/nft-IPv6"},
	} {
		add("BGP", of.family, of.plane, netns+"TestBGPPods"+of.sub, "", "pod", "Service", "NodePort", "DSR", "policy")
		add("BGP", of.family, of.plane, netns+"TestBGPPodsLive"+of.sub, "", "live change", "another router")
		learned := netns + "TestWhyLearned/ebpf-both"
		if of.plane == nftables {
			learned = netns + "TestWhyLearned/nft-both"
		}
		add("BGP", of.family, of.plane, learned, "", "why")
	}
	emulated := func(check, plane, test string, what ...string) {
		for _, w := range what {
			out = append(out, cells.Cell{Mode: "IP in IP", Family: "IPv4", Plane: plane, What: w, Test: netns + test, Kernels: check})
		}
	}
	emulated("IP in IP", ebpf, "TestIPIPKernel/ebpf-IPv4", "a kernel's device at the other end")
	const check = "IP in IP, nftables"
	emulated(check, nftables, "TestIPIP/nft-routed", "pod", "Service", "NodePort", "policy", "DSR")
	emulated(check, nftables, "TestIPIP/mixed-routed", "the other node has eBPF")
	emulated(check, nftables, "TestIPIPLive/nft-IPv4", "live change")
	emulated(check, nftables, "TestIPIPSources/nft-IPv4", "no injection")
	emulated(check, nftables, "TestIPIPWhy/nft-IPv4", "why")
	for _, kind := range slices.Concat(routertest.Kinds, routertest.Newer) {
		for _, of := range []struct {
			what, test string
			needs      routertest.Feature
		}{
			{what: "routes both ways, kills", test: "TestRouter"}, {what: "link failure", test: "TestBFD", needs: routertest.BFD},
			{what: "filters", test: "TestFilters"}, {what: "handed on by a filter", test: "TestFilterHandsOn"}, {what: "communities", test: "TestCommunities"},
			{what: "two routers at once", test: "TestTwoRouters"}, {what: "next hops", test: "TestNextHops"},
			{what: "a peer behind a router", test: "TestReachableBy"}, {what: "priorities", test: "TestPriorities"},
			{what: "long-lived graceful restart", test: "TestLongLivedRestart", needs: routertest.LongLived},
			{what: "reflected Services", test: "TestServicesAreReflected"}, {what: "what `weir bgp` shows", test: "TestShow"},
			{what: "passwords", test: "TestPassword"},
		} {
			test, why := bgp+of.test+"/"+kind, ""
			if of.needs != "" && !routertest.Has(kind, of.needs) {
				test, why = "", "this router has no "+string(of.needs)
			}
			add("BGP with "+kind, "both", process, test, why, of.what)
		}
	}
	add("BGP with bird", "both", process, bgp+"TestManyRoutes", "", "10,000 routes")
	add("BGP with bird", "both", process, bgp+"TestSessionEndsWhileRoutesArrive", "", "no route is left")
	add("BGP with bird", "both", process, bgp+"TestLoop", "", "no path with the node's own AS number")
	add("BGP with bird", "both", process, bgp+"TestAnotherRouterID", "", "another router ID")
	return out
}
