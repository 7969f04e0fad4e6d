// SPDX-License-Identifier: Apache-2.0

package main

// attacksServers are the guards of what leads to API servers.
var attacksServers = []mutant{
	{fault: fault{"a Service's external IP is the address by which kubelets reach the API servers, and agents do not", protectedFile,
		"	return is && g.external == nil", "	return false && is"}, pkg: calcPackage, run: "^TestHostileExternalIPOfUnknownServers$"},
	{fault: fault{"a Service's external IP or load balancer's address takes the API server's load balancer, which only agents know", protectedFile,
		"range c.Local.APIServers {", "range c.Local.APIServers[:0] {"}, pkg: calcPackage, run: "^TestHostileExternalIPOfReachedServer$"},
	{fault: fault{"an EndpointSlice that a tenant wrote counts as the API servers' own", "internal/calc/cluster/api_servers.go",
		"sl.Name == APIServerSlice || APIServersOf(c) == nil", "sl.Service == APIService"}, pkg: calcPackage, run: "^TestHostileSliceOfAPIServers$"},
	{fault: fault{"an EndpointSlice that a tenant wrote opens ports of host endpoints as the API servers' own does", "internal/calc/cluster/api_servers.go",
		"sl.Name == APIServerSlice || APIServersOf(c) == nil", "sl.Service == APIService"}, pkg: calcPackage, run: "^TestHostileSliceOpensHosts$"},
	{fault: fault{"an EndpointSlice that a tenant wrote says where agents look for the API server, and says it thousandfold", "internal/agent/apiserver/endpointslices.go",
		"slice.Service == of && (of != Service || name == Service)", "slice.Service == of"}, pkg: "./internal/agent/apiserver", run: "^TestHostileServersOfSlices$"},
	{fault: fault{"a node claims the address of an API server outside, whose port is then kept from every node's pods and Services", protectedFile,
		"c.Nodes[name].Since[a] == 0", "c.Nodes[name] != nil"}, pkg: calcPackage, run: "^TestHostileNodeIsAPIServer$"},
	{fault: fault{"a pool covers the load balancer by which agents reach the API server", "internal/calc/cluster/pool_overlaps.go",
		"		if a := at.Addr().Unmap(); !model.Within(c.ServiceCIDRs, a) {", "		if a := at.Addr().Unmap(); model.Within(c.ServiceCIDRs, a) {"}, pkg: calcPackage, run: "^TestHostilePoolOverNodes$"},
	{fault: fault{"a ServiceCIDR over nodes takes their addresses from them, so that pods there are not reached", "internal/calc/cluster/ownership_nodes.go",
		"n.Since[a] != 0 || h.ranged[a] <= n.ClaimedAt(a)", "n.Since != nil || h != nil"}, pkg: calcPackage, run: "^TestHostileServiceCIDROverNodes$"},
	{fault: fault{"a ServiceCIDR covers nodes behind a router alone", "internal/calc/route/routes.go",
		"c.CarriedPrefix(p) && !by.Forbids(p)", "c.CarriedPrefix(p) && !by.needs(p)"}, pkg: calcPackage, run: "^TestHostileServiceCIDROverNodes$"},
	{fault: fault{"a pod's host port on a loopback address takes the node's resolver or the probes of its static pods", refusalsFile,
		"		if why := rejectLoopback(p.id); why != \"\" {", "		if why := rejectLoopback(p.id); false {"}, pkg: calcPackage, run: "^TestHostileHostPortOfLoopback$"},
	{fault: fault{"a pod's host port on a loopback address is rendered, and breaks what the node asks there", "internal/dataplane/nft/chains/service_chains.go",
		"		\"$ip saddr $loopback return\",", "		\"$ip saddr != $loopback return\","}, pkg: "./internal/dataplane/nft", run: "^TestHostileLoopback$"},
	{fault: fault{"a younger pod's host port takes the port of an older Service's external IP at its node", "internal/calc/service/pod_addrs.go",
		"		return here && cmp.Or(", "		return here || cmp.Or("}, pkg: calcPackage, run: "^TestHostileYoungerHostPort$"},
	{fault: fault{"a Service takes another port of an older external address of another namespace", protectedFile,
		"first.Namespace != svc.Name.Namespace && ", "false && "}, pkg: calcPackage, run: "^TestHostileOtherPortOfAddress$"},
	{fault: fault{"a node writes a Service's external address, or that of its backend, into the status of its pod", "internal/calc/service/pod_addrs.go",
		"			if p.c.Owners.OwnsAddr(p.c, r, a) && !yield(r) {", "			if !yield(r) {"}, pkg: calcPackage, run: "^TestHostilePodAddressOfService$"},
	{fault: fault{"a node writes an address into the status of its pod that somebody else's pod asks for or has", "internal/agent/cluster_pods.go",
		"r.Object == \"Pod \"+name.String() && r.Value == a.String()", "r.Object == \"\" && r.Value == a.String()"}, pkg: "./internal/agent", run: "^TestHostileOwner$"},
	{fault: fault{"a wrong frontend's flows to an API server outlive it, and its sockets, on every port of a node", "internal/dataplane/ebpf/flowtable/free.go",
		"(v.Daddr != k.Daddr || v.Dport != k.Dport)", "(v.Dport != k.Dport && v.Daddr == k.Daddr)"}, pkg: "./internal/dataplane/ebpf/flowtable", run: "^TestHostileTranslatedFlows$"},
}
