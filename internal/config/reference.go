// SPDX-License-Identifier: Apache-2.0

package config

// Reference is what a manual says of one field; see docs/reference/settings.md, which is generated
// from it.
type Reference struct {
	Name    string // in the FelixConfiguration; empty = the field is for the environment alone
	Env     string // the variable of the agent's environment
	Default string // as text, as it would be written in the environment
	Allowed string // in words; empty where the field has no effect
	Doc     string // one line; empty where the field has no effect
	// Lacks says, of a field that asks for protection which is not there, what is not protected.
	Lacks string
	// Never says, of a field about something that Weir does not have, why it has no effect.
	Never string
	// Same are further values, as texts, with which a field without effect says what is so anyway.
	Same []string
}

// InForce reports whether the field has an effect.
func (r Reference) InForce() bool { return r.Doc != "" }

// environmentOnly are fields that no FelixConfiguration has.
var environmentOnly = map[string]bool{"nodePortAddresses": true, "serviceExternalIPs": true, "cniChaining": true,
	"flowRecordsKept": true, "egressBandwidthShaping": true, "hubblePort": true, "hubbleCertFile": true, "hubbleKeyFile": true, "hubbleCAFile": true, "hubbleClientGroup": true}

// All returns every field that is known, in the order of the table.
func All() []Reference {
	all := make([]Reference, 0, len(fields))
	for i := range fields {
		f := &fields[i]
		r := Reference{Name: f.name, Env: envPrefix + f.env, Default: f.def, Lacks: f.lacks, Never: f.never, Same: f.same}
		if f.apply != nil {
			r.Allowed, r.Doc = f.allow, docs[f.name]
		}
		if environmentOnly[f.name] {
			r.Name = ""
		}
		if f.name == "bpfEnabled" {
			r.Default = "" // unset is neither true nor false: it depends on the kernel
		}
		all = append(all, r)
	}
	return all
}

// docs has a line for each field in force; a test holds that.
var docs = map[string]string{
	"healthEnabled": "Serve `/liveness` and `/readiness` of the agent at `healthHost`:`healthPort`.",
	"healthHost":    "Address at which the agent's health is served.",
	"healthPort":    "TCP port at which the agent's health is served.",

	"prometheusGoMetricsEnabled":      "Serve metrics of the Go runtime, too.",
	"prometheusMetricsCAFile":         "File with the authorities of metrics' clients, for the last two values of `prometheusMetricsClientAuth`.",
	"prometheusMetricsCertFile":       "File with the certificate for metrics. With it and the key, metrics are served by TLS alone.",
	"prometheusMetricsClientAuth":     "What is asked of metrics' clients: `NoClientCert`, `RequireAnyClientCert`, `VerifyClientCertIfGiven`, `RequireAndVerifyClientCert`. With any other value metrics are not served.",
	"prometheusMetricsEnabled":        "Serve [metrics](metrics.md).",
	"prometheusMetricsHost":           "Address at which metrics are served; empty is every address.",
	"prometheusMetricsKeyFile":        "File with the key of the certificate for metrics.",
	"prometheusMetricsPort":           "TCP port at which metrics are served.",
	"prometheusProcessMetricsEnabled": "Serve metrics of the process, too.",

	"allowIPIPPacketsFromWorkloads":         "Pods may send IP in IP: [Tunnels of pods](policy.md#tunnels-of-pods) says what that opens.",
	"allowVXLANPacketsFromWorkloads":        "Pods may send VXLAN: [Tunnels of pods](policy.md#tunnels-of-pods) says what that opens.",
	"cgroupV2Path":                          "Folder of the cgroup v2 hierarchy whose sockets are this node's; empty is the root of the hierarchy.",
	"defaultEndpointToHostAction":           "What happens to packets of pods to their own node, after the pod's policy. `RETURN`: the host endpoint `*` decides.",
	"failsafeInboundHostPorts":              "Ports of the node that no policy of [host endpoints](policy.md#host-endpoints) closes.",
	"failsafeOutboundHostPorts":             "Ports that the node may reach whatever the policy of [host endpoints](policy.md#host-endpoints) says.",
	"flowLogsFlushInterval":                 "After how long an open flow is reported, and what was reported of a flow becomes one record ([flow records](../guides/flows.md)). The agent starts anew.",
	"flowLogsFileAggregationKindForAllowed": "`1`: connections that policy allows, and that differ in their source ports alone, are one [flow record](../guides/flows.md#fewer-records) an interval. `2` and `3` do the same here.",
	"flowRecordsKept":                       "How many [flow records](../guides/flows.md) the node keeps, the latest ones, some 1 KiB each.",
	"egressBandwidthShaping":                "What holds pods to their [egress bandwidth](qos.md#bandwidth) with eBPF: a queue with a rate for each pod, or the times at which packets may depart, also from the uplink (Linux 5.18 with `sch_fq`).",
	"hubblePort":                            "TCP port at which the agent serves [Hubble's API](../guides/hubble.md) by TLS while flow records are kept; 0: at the socket of the node alone.",
	"hubbleCertFile":                        "File with the certificate for `FELIX_HubblePort`; empty, and no key either: the controller signs one for the name of the node, where [it is to](../guides/hubble.md#by-tcp).",
	"hubbleKeyFile":                         "File with its key.",
	"hubbleCAFile":                          "File with the authorities whose clients are answered there.",
	"hubbleClientGroup":                     "Organization that their certificates need; empty: any.",
	"flowLogsLocalReporter":                 "`Enabled`: the node accounts for flows, and keeps records of them ([flow records](../guides/flows.md)). The agent starts anew.",
	"interfacePrefix":                       "How the names of pods' interfaces on the node begin.",
	"ipv6Support":                           "Carry IPv6 where the cluster has it.",
	"localSubnetL2Reachability":             "Answer ARP and neighbour solicitations for [addresses on the link](services.md#who-answers-for-these-addresses-on-the-link).",
	"dnsTrustedServers":                     "DNS servers whose answers [policy by domain name](../guides/domain-names.md) is made from, by UDP and TCP at port 53. A Service stands for its addresses and those of its endpoints; without a namespace it is in kube-system. The address 169.254.20.10 of NodeLocal DNSCache counts in any case on nodes that have it.",
	"dnsExtraTTL":                           "For how long an address counts for [policy by domain name](../guides/domain-names.md) after its time to live, which counts as ten seconds at least.",
	"egressIPSupport":                       "Whose annotations `egress.projectcalico.org/…` lead pods out by [egress gateways](../guides/egress-gateways.md): nobody's, namespaces', or also pods'.",
	"floatingIPs":                           "Pods may have [floating addresses](policy.md#floating-addresses) that they ask for and their namespaces grant.",
	"workloadSourceSpoofing":                "With `Any`, pods may send from the prefixes that they ask for and their namespaces [grant](policy.md#sources-that-are-not-a-pods-own).",
	"natOutgoingExclusions":                 "Destinations that pods of a pool with `natOutgoing` reach without source NAT: addresses of pools, or those and nodes' addresses.",
	"routeSource":                           "Routes to pods follow the nodes' blocks, or pods' addresses in the API.",

	"bpfConnectTimeLoadBalancingEnabled": "Older form of `bpfConnectTimeLoadBalancing`: `true` is `Enabled`; `false` leaves it to the newer field.",
	"bpfConnectTimeLoadBalancing":        "Protocols whose connections of pods and host processes to a cluster IP get a backend when the socket connects; the rest gets one in the packet path.",
	"bpfConntrackTimeouts":               "How long a flow is remembered after its last packet. `Auto` is the time-out of the kernel's connection tracking where it is known, else the default. All or nothing: one part that is not valid, and none is taken.",
	"bpfDSROptoutCIDRs":                  "Clients whose answers always go by the node that they asked; see [external traffic](external-traffic.md).",
	"bpfDataIfacePattern":                "Regular expression of the names of uplinks: the interfaces by which nodes, and clients outside, are reached.",
	"bpfEnabled":                         "`false`: the node has the [nftables data plane](../design/nftables.md). Unset is eBPF where the kernel can. A change is live.",
	"bpfEnforceRPF":                      "`Strict`: what comes in by an uplink is dropped (`REVERSE_PATH`) where the route to its source leads out by another interface. `Loose` and `Disabled` do the same: sources of the cluster are checked in any case.",
	"bpfExcludeCIDRsFromNAT":             "Cluster IPs that are not translated, for something else on the node that answers them, such as NodeLocal DNSCache.",
	"bpfExportBufferSizeMB":              "Size of the ring of flow events in MB, rounded up to a power of 2. Takes effect when the agent starts.",
	"bpfExternalServiceMode":             "How answers go back to clients outside: through the node that was asked, or directly ([external traffic](external-traffic.md)).",
	"bpfHostNetworkedNATWithoutCTLB":     "Host processes reach Services in the packet path where they got no backend at connect time.",
	"bpfIPFragTimeout":                   "Seconds that fragments of a packet wait for each other; 0 is the default, 30.",
	"bpfIPFragmentReassemblyEnabled":     "Carry fragments of Services' and pods' packets. `false`: they are dropped (`FRAGMENT`).",
	"bpfKubeProxyHealthzPort":            "TCP port at which the node answers load balancers' health checks as kube-proxy does; 0 is none.",
	"bpfKubeProxyIptablesCleanupEnabled": "Remove the rules of a kube-proxy that no longer runs on the node ([services](services.md#after-a-kube-proxy)).",
	"bpfMapSizeConntrack":                "Flows in the connection table. A change is carried over to a new table when the agent starts.",
	"bpfMapSizeConntrackScaling":         "`DoubleIfFull`: the table doubles when it is more than 90 % full, up to four times `bpfMapSizeConntrack`.",
	"bpfMapSizeIPSets":                   "Addresses, and as many networks, that policies may name. Takes effect when the agent starts.",
	"bpfMapSizeNATAffinity":              "Clients with session affinity. Takes effect when the agent starts.",
	"bpfMapSizeNATBackend":               "Backends of Services. Takes effect when the agent starts.",
	"bpfMapSizeNATFrontend":              "Frontends of Services: cluster IPs, node ports, external addresses, by port. Takes effect when the agent starts.",
	"bpfMapSizeRoute":                    "Addresses of pods and nodes. Takes effect when the agent starts.",
	"bpfPSNATPorts":                      "Ports of the node for source NAT of pods, and of clients where their own port is in use.",

	"ipipEnabled": "`true`: nodes take IP in IP of each other also before a pool's `ipipMode` asks for it. `false`: no pool's `ipipMode` is in force. Empty: as the pools say.",
	"ipipMTU":     "MTU of pods where IP in IP is in use; 0 is that of the uplink less 20 bytes.",

	"vxlanMTU":  "MTU of IPv4 packets of pods where VXLAN is in use; 0 is that of the uplink less 50 bytes.",
	"vxlanPort": "UDP port of VXLAN.",
	"vxlanVNI":  "Network identifier of VXLAN.",

	"wireguardEnabled":               "Encrypt what nodes send to each other's pods by IPv4 ([WireGuard](../guides/wireguard.md)).",
	"wireguardEnabledV6":             "The same for IPv6.",
	"wireguardHostEncryptionEnabled": "Encrypt what nodes themselves exchange, too, of the families that are encrypted ([WireGuard](../guides/wireguard.md#what-nodes-themselves-exchange)).",
	"wireguardInterfaceName":         "Name of the device that carries IPv4.",
	"wireguardInterfaceNameV6":       "Name of the device that carries IPv6.",
	"wireguardListeningPort":         "UDP port of the device that carries IPv4; all nodes have the same. It is open whatever host endpoints say.",
	"wireguardListeningPortV6":       "The same of the device that carries IPv6.",
	"wireguardMTU":                   "MTU of the device that carries IPv4; 0 is that of the uplink less 60 bytes. Packets of pods have 50 bytes less.",
	"wireguardMTUV6":                 "MTU of the device that carries IPv6; 0 is that of the uplink less 80 bytes. Packets of pods have 70 bytes less.",
	"wireguardKeepAlive":             "Pause after which a node that has nothing to send sends a keep-alive; 0 is none. For NAT between nodes.",
	"wireguardRoutingRulePriority":   "Priority of the routing rule by which packets of the tunnel reach the device.",
	"wireguardStrict":                "Send nothing to the pods of nodes that have published no key, rather than in clear.",

	"nodePortAddresses":  "Addresses of the node at which node ports answer: networks, or `primary` for those by which nodes know each other. Empty is every address.",
	"awsSrcDstCheck":     "What the controller makes of EC2's source/destination check of nodes' primary interfaces: see [on Amazon VPC CNI](../guides/chaining.md#the-sourcedestination-check).",
	"cniChaining":        "Another CNI plugin that gives pods their addresses and interfaces, as `weir install --on` sets it: see [with another CNI plugin](../guides/chaining.md).",
	"serviceExternalIPs": "Networks that `spec.externalIPs` of Services may name, or `none`. Empty allows every address that nobody else has.",
}
