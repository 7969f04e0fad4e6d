// SPDX-License-Identifier: Apache-2.0

package main

// Cell is something that has to work, and the test that shows it.
type Cell struct {
	Mode   string `json:"mode"`
	Family string `json:"family"`
	Plane  string `json:"plane"`
	What   string `json:"what"`
	Test   string `json:"test,omitempty"`   // folder and name; empty = there is none
	Why    string `json:"why,omitempty"`    // there is none
	Result string `json:"result,omitempty"` // passed, failed, not run
}

// What is asked of every mode, of both families and data planes.
var asked = []string{"pod", "Service", "NodePort", "DSR", "policy", "why", "live change"}

const (
	ebpf     = "eBPF"
	nftables = "nftables"
	process  = "weir-bgp" // whichever the data plane
)

// cells are all of them.
func cells() []Cell {
	var out []Cell
	add := func(mode, family, plane, test, why string, what ...string) {
		for _, w := range what {
			out = append(out, Cell{Mode: mode, Family: family, Plane: plane, What: w, Test: test, Why: why})
		}
	}
	const netns, bgp, scenarios = "test/netns ", "internal/bgp/process ", "test/scenarios "
	for _, of := range []struct{ family, plane, test string }{
		{"IPv4", ebpf, "TestWireGuard/IPv4"}, {"IPv6", ebpf, "TestWireGuard/IPv6"},
		{"IPv4", nftables, "TestWireGuard/nft-IPv4"}, {"IPv6", nftables, "TestWireGuard/nft-IPv6"},
	} {
		add("WireGuard", of.family, of.plane, netns+of.test, "", "pod", "Service", "NodePort", "DSR", "policy", "live change")
		add("WireGuard", of.family, of.plane, "", "no test asks with encryption", "why")
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
	add("IP in IP", "IPv4", ebpf, "", "no test asks with it", "why")
	add("IP in IP", "IPv4", nftables, "", "a node sends VXLAN in its place", asked...)
	for _, plane := range []string{ebpf, nftables} {
		add("BGP", "both", plane, "", "pods' packets to other nodes do not go by learned routes to blocks yet", asked...)
	}
	for _, kind := range []string{"bird", "frr"} {
		for _, of := range []struct{ what, test string }{
			{"routes both ways, kills", "TestRouter"}, {"link failure", "TestBFD"}, {"filters", "TestFilters"}, {"communities", "TestCommunities"},
			{"reflected Services", "TestServicesAreReflected"}, {"what `weir bgp` shows", "TestShow"},
		} {
			add("BGP with "+kind, "both", process, bgp+of.test+"/"+kind, "", of.what)
		}
	}
	add("BGP with bird", "both", process, bgp+"TestPassword", "", "passwords")
	add("BGP with bird", "both", process, bgp+"TestManyRoutes", "", "10,000 routes")
	add("BGP with bird", "both", process, bgp+"TestSessionEndsWhileRoutesArrive", "", "no route is left")
	add("BGP with bird", "both", process, bgp+"TestAnotherRouterID", "", "another router ID")
	return out
}
