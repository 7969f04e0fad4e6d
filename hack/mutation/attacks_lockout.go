// SPDX-License-Identifier: Apache-2.0

package main

// attacksLockout are the guards of what must not lock a node out.
var attacksLockout = []mutant{
	{fault: fault{"frontend, route, NAT entry and deny at the API server's address at once keep the agent from it", "bpf/sock.c",
		"(sk->mark & MARK_MASK) == MARK_OWN", "(sk->mark & MARK_MASK) == MARK_AGAIN"}, pkg: "./test/netns", run: "^TestHostileLockedOut$/^IPv4$"},
	{fault: fault{"a pod's connection to the API server has the port that the agent takes", "bpf/own.h",
		"		flow_end(p, f);", "		f->seen = f->seen;"}, pkg: "./test/netns", run: "^TestHostileLockedOut$/^IPv4$"},
	{fault: fault{"a host endpoint without failsafe ports denies the API server", "internal/dataplane/nft/chains/filter_chains.go",
		`open + "accept", ownSent}`, `open + "accept"}`}, pkg: "./test/netns", run: "^TestHostileLockedOut$/^nft-IPv4$"},
	{fault: fault{"an agent starts where frontend, route, flows and deny at once lead everybody away from the API server", "internal/kernel/own.go",
		"unix.SO_MARK, OwnMark)", "unix.SO_MARK, OwnMark&1)"}, pkg: "./test/heal", run: "^TestHostileAgentHeals$"},
	{fault: fault{"tracked connections on every port of a node, which nobody answers, are translated away from the API server", "internal/conntrack/free.go",
		"asked != got &&", "asked == got &&"}, pkg: "./test/heal", run: "^TestHostileAgentHeals$"},
	{fault: fault{"a Service that comes takes open connections of the node's own processes", "bpf/flow_begin.h",
		"	if (flow_goes_on(skb, p, s, a))", "	if (0)"}, pkg: "./test/netns", run: "^TestHostileOpenHostFlow$/^IPv4$"},
	{fault: fault{"a pool's routes by weir0 cover the API server when an agent starts that knows it by its cluster IP", "internal/kernel/free.go",
		"r.Protocol != RouteProtocol ||", "r.Protocol == RouteProtocol ||"}, pkg: "./internal/agent", run: "^TestHostileRouteToAPI$"},
	{fault: fault{"a pool, disabled or not, covers nodes, a gateway or the API server", "internal/calc/route/routes.go",
		`		case by.Overlap(p) != "":`, `		case by.Overlap(p) == "never":`}, pkg: "./internal/calc", run: "^TestHostilePoolOverNodes$"},
	{fault: fault{"a node claims an address in the pool of pods, so that agents refuse the pool", "internal/calc/cluster/pool_overlaps.go",
		"!c.Covered.needs(p.CIDR) && InUse(c, p)", "!c.Covered.Forbids(p.CIDR) && InUse(c, p)"}, pkg: "./internal/calc", run: "^TestHostilePoolByOneNode$"},
	{fault: fault{"what Weir left in a node's kernel goes on after it was removed", "internal/agent/cleanup.go",
		"return l.Alias == kernel.DeviceAlias }", "return l.Alias == kernel.DeviceAlias+\".\" }"}, pkg: "./internal/agent", run: "^TestHostileLeftovers$"},
	{fault: fault{"a ServiceCIDR covers the nodes' network", "internal/calc/route/routes.go",
		"c.CarriedPrefix(p) && !by.Forbids(p)", "c.CarriedPrefix(p)"}, pkg: "./internal/calc", run: "^TestHostileServiceCIDROverNodes$"},
	{fault: fault{"a pod goes on reaching another one that a policy shuts while the data plane changes", "internal/dataplane/ebpf/driver.go",
		"		return d.keepTables()\n", "		return nil\n"}, pkg: "./test/netns", run: "^TestHostileChangeDuringSwitch$/^IPv4$"},
	{fault: fault{"a pod goes on reaching another one that a policy shuts while the agent starts", "internal/dataplane/ebpf/background_load.go",
		"	err := d.keepTables()\n", "	var err error\n"}, pkg: "./test/netns", run: "^TestHostileChangeDuringStart$/^IPv4$"},
}
