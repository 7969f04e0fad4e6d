package main

// attacksServers are the guards of what leads to API servers.
var attacksServers = []mutant{
	{fault: fault{"a Service's external IP is the address by which kubelets reach the API servers, and agents do not", guardsFile,
		"	return is && g.external == nil", "	return false && is"}, pkg: calcPackage, run: "^TestHostileExternalIPOfUnknownServers$"},
	{fault: fault{"a Service's external IP or load balancer's address takes the API server's load balancer, which only agents know", guardsFile,
		"range c.Local.APIServers {", "range c.Local.APIServers[:0] {"}, pkg: calcPackage, run: "^TestHostileExternalIPOfReachedServer$"},
	{fault: fault{"an EndpointSlice that a tenant wrote counts as the API servers' own", guardsFile,
		"sl.Name == apiServerSlice || apiServersOf(c) == nil", "sl.Service == apiService"}, pkg: calcPackage, run: "^TestHostileSliceOfAPIServers$"},
	{fault: fault{"an EndpointSlice that a tenant wrote opens ports of host endpoints as the API servers' own does", guardsFile,
		"sl.Name == apiServerSlice || apiServersOf(c) == nil", "sl.Service == apiService"}, pkg: calcPackage, run: "^TestHostileSliceOpensHosts$"},
	{fault: fault{"an EndpointSlice that a tenant wrote says where agents look for the API server, and says it thousandfold", "internal/agent/apiservers.go",
		"slice.Service == of && (of != apiService || name == apiService)", "slice.Service == of"}, pkg: "./internal/agent", run: "^TestHostileServersOfSlices$"},
	{fault: fault{"a node claims the address of an API server outside, whose port is then kept from every node's pods and Services", guardsFile,
		"c.Nodes[name].Since[a] == 0", "c.Nodes[name] != nil"}, pkg: calcPackage, run: "^TestHostileNodeIsAPIServer$"},
}
