// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/model"
)

const (
	hostPattern = `^[A-Za-z0-9.:_-]{0,253}$`
	hostWords   = "a host name or an IP address"

	devicePattern = `^[A-Za-z0-9_.-]{1,15}$`
	deviceWords   = "an interface name"
)

var defaultFailsafesIn, defaultFailsafesOut = model.DefaultFailsafes()

// fields is the table of everything that may be configured: the name in the FelixConfiguration, the
// name in the environment, the default, and how a value is read.
var fields = append([]field{
	// Health port and timeouts.
	boolean("healthEnabled", "HealthEnabled", false, func(e *Effective, v bool) { e.Health.Enabled = v }),
	text("healthHost", "HealthHost", "localhost", hostPattern, hostWords, func(e *Effective, v string) { e.Health.Host = v }),
	integer("healthPort", "HealthPort", 9099, 1, 65535, func(e *Effective, v int) { e.Health.Port = uint16(v) }),
	unsupported("healthTimeoutOverrides", "HealthTimeoutOverrides", ""),

	// Prometheus metrics.
	boolean("prometheusGoMetricsEnabled", "PrometheusGoMetricsEnabled", true, func(e *Effective, v bool) { e.Metrics.Go = v }),
	verbatim("prometheusMetricsCAFile", "PrometheusMetricsCAFile", "", func(e *Effective, v string) { e.Metrics.TLS.CAFile = v }),
	verbatim("prometheusMetricsCertFile", "PrometheusMetricsCertFile", "", func(e *Effective, v string) { e.Metrics.TLS.CertFile = v }),
	metricsClientAuth(),
	boolean("prometheusMetricsEnabled", "PrometheusMetricsEnabled", false, func(e *Effective, v bool) { e.Metrics.Enabled = v }),
	text("prometheusMetricsHost", "PrometheusMetricsHost", "", hostPattern, hostWords, func(e *Effective, v string) { e.Metrics.Host = v }),
	verbatim("prometheusMetricsKeyFile", "PrometheusMetricsKeyFile", "", func(e *Effective, v string) { e.Metrics.TLS.KeyFile = v }),
	integer("prometheusMetricsPort", "PrometheusMetricsPort", 9091, 1, 65535, func(e *Effective, v int) { e.Metrics.Port = uint16(v) }),
	boolean("prometheusProcessMetricsEnabled", "PrometheusProcessMetricsEnabled", true, func(e *Effective, v bool) { e.Metrics.Process = v }),
	unsupported("prometheusWireGuardMetricsEnabled", "PrometheusWireGuardMetricsEnabled", "true", "false"),

	// Common.
	boolean("allowIPIPPacketsFromWorkloads", "AllowIPIPPacketsFromWorkloads", false, func(e *Effective, v bool) { e.Settings.IPIPFromPods = v }),
	boolean("allowVXLANPacketsFromWorkloads", "AllowVXLANPacketsFromWorkloads", false, func(e *Effective, v bool) { e.Settings.VXLANFromPods = v }),
	text("cgroupV2Path", "CgroupV2Path", "", `^(/[^\x00\n]*)?$`, "an absolute path", func(e *Effective, v string) { e.CgroupV2Path = v }),
	unsupported("dataplaneWatchdogTimeout", "DataplaneWatchdogTimeout", "90s"),
	choice("defaultEndpointToHostAction", "DefaultEndpointToHostAction", "ACCEPT", []string{"ACCEPT", "DROP", "RETURN"},
		func(e *Effective, v string) { e.Settings.ToHost = model.ToHostAction(v) }),
	unsupported("deviceRouteProtocol", "DeviceRouteProtocol", "3"),
	unsupported("deviceRouteSourceAddress", "DeviceRouteSourceAddress", ""),
	unsupported("deviceRouteSourceAddressIPv6", "DeviceRouteSourceAddressIPv6", ""),
	unsupported("endpointStatusPathPrefix", "EndpointStatusPathPrefix", "/var/run/calico"),
	unsupported("externalNodesList", "ExternalNodesCIDRList", ""),
	failsafes("failsafeInboundHostPorts", "FailsafeInboundHostPorts", defaultFailsafesIn, func(e *Effective, l []model.Failsafe) { e.Settings.FailsafeIn = l }),
	failsafes("failsafeOutboundHostPorts", "FailsafeOutboundHostPorts", defaultFailsafesOut, func(e *Effective, l []model.Failsafe) { e.Settings.FailsafeOut = l }),
	choice("floatingIPs", "FloatingIPs", "Disabled", []string{"Disabled", "Enabled"}, func(e *Effective, v string) { e.Settings.FloatingIPs = v == "Enabled" }),
	unsupported("ipForwarding", "IPForwarding", "Enabled"),
	unsupported("ipv4ElevatedRoutePriority", "IPv4ElevatedRoutePriority", "512"),
	unsupported("ipv4NormalRoutePriority", "IPv4NormalRoutePriority", "1024"),
	unsupported("ipv6ElevatedRoutePriority", "IPv6ElevatedRoutePriority", "512"),
	unsupported("ipv6NormalRoutePriority", "IPv6NormalRoutePriority", "1024"),
	unsupported("interfaceExclude", "InterfaceExclude", `["^kube-ipvs0$"]`, "^kube-ipvs0$", "kube-ipvs0"),
	text("interfacePrefix", "InterfacePrefix", "cali", `^[a-zA-Z][a-zA-Z0-9]{0,3}$`, "a prefix of one to four letters and digits",
		func(e *Effective, v string) { e.Settings.InterfacePrefix = v }),
	unsupported("interfaceRefreshInterval", "InterfaceRefreshInterval", "90s"),
	choice("egressIPSupport", "EgressIPSupport", "Disabled", []string{"Disabled", "EnabledPerNamespace", "EnabledPerNamespaceOrPerPod"},
		func(e *Effective, v string) {
			e.Settings.Egress = map[string]model.EgressSupport{"EnabledPerNamespace": model.EgressPerNamespace, "EnabledPerNamespaceOrPerPod": model.EgressPerNamespaceOrPerPod}[v]
		}),
	boolean("ipv6Support", "Ipv6Support", true, func(e *Effective, v bool) { e.Settings.IPv6Support = v }),
	choice("localSubnetL2Reachability", "LocalSubnetL2Reachability", "Disabled", []string{"Disabled", "PodsAndLoadBalancers"},
		func(e *Effective, v string) { e.Settings.L2Reachability = v == "PodsAndLoadBalancers" }),
	unsupported("localSubnetL2ReachabilityRefreshInterval", "LocalSubnetL2ReachabilityRefreshInterval", "120s"),
	unsupported("mtuIfacePattern", "MTUIfacePattern", "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)"),
	unsupported("natOutgoingAddress", "NATOutgoingAddress", ""),
	choice("natOutgoingExclusions", "NATOutgoingExclusions", "IPPoolsOnly", []string{"IPPoolsOnly", "IPPoolsAndHostIPs"},
		func(e *Effective, v string) { e.Settings.NATExcludeHostIPs = v == "IPPoolsAndHostIPs" }),
	unsupported("natPortRange", "NATPortRange", "0", "0:0"),
	unsupported("nftablesFlowTableDataIfacePattern", "NFTablesFlowTableDataIfacePattern", ""),
	unsupported("nftablesFlowTableOffload", "NFTablesFlowTableOffload", "Disabled"),
	unsupported("nftablesMode", "NFTablesMode", "Auto"),
	unsupported("netlinkTimeout", "NetlinkTimeoutSecs", "10s"),
	unsupported("policySyncPathPrefix", "PolicySyncPathPrefix", ""),
	unsupported("programClusterRoutes", "ProgramClusterRoutes", "EnabledIPIPOnly"),
	unsupported("removeExternalRoutes", "RemoveExternalRoutes", "true"),
	unsupported("requireMTUFile", "RequireMTUFile", "false"),
	unsupported("routeRefreshInterval", "RouteRefreshInterval", "90s"),
	choice("routeSource", "RouteSource", "CalicoIPAM", []string{"CalicoIPAM", "WorkloadIPs"},
		func(e *Effective, v string) { e.Settings.WorkloadRoutes = v == "WorkloadIPs" }),
	unsupported("routeSyncDisabled", "RouteSyncDisabled", "false"),
	unsupported("routeTableRange", "RouteTableRange", `{"Min":0,"Max":0}`, `{"min":0,"max":0}`, `{"max":0,"min":0}`),
	unsupported("routeTableRanges", "RouteTableRanges", ""),
	unsupported("serviceLoopPrevention", "ServiceLoopPrevention", "Drop"),
	choice("workloadSourceSpoofing", "WorkloadSourceSpoofing", "Disabled", []string{"Disabled", "Any"},
		func(e *Effective, v string) { e.Settings.SourceSpoofing = v == "Any" }),

	// Policy by domain name.
	{name: "dnsTrustedServers", env: "DNSTrustedServers", def: "k8s-service:kube-dns", allow: "a list of IP addresses and of k8s-service:[namespace/]name", apply: applyDNSServers},
	{name: "dnsExtraTTL", env: "DNSExtraTTL", def: "0s", allow: "0s..24h", apply: applyDNSExtraTTL},

	// Flow records.
	// Of the editions of Calico that write flows into files.
	{name: "flowLogsFileAggregationKindForAllowed", env: "FlowLogsFileAggregationKindForAllowed", def: "0", allow: "a number 0..3", apply: applyFlowAggregation},
	unsupported("flowLogsFileAggregationKindForDenied", "FlowLogsFileAggregationKindForDenied", "1"),
	{name: "flowLogsFlushInterval", env: "FlowLogsFlushInterval", def: "15s", allow: "1s..1h", apply: applyFlowInterval},
	choice("flowLogsLocalReporter", "FlowLogsLocalReporter", "Disabled", []string{"Disabled", "Enabled"}, func(e *Effective, v string) {
		e.FlowRecords = 0
		if v == "Enabled" {
			e.FlowRecords = e.flowInterval
		}
	}),
	// How many are kept. No FelixConfiguration has it: it is for the environment.
	integer("flowRecordsKept", "FlowRecordsKept", 32768, 1024, 1<<20, func(e *Effective, v int) { e.FlowsKept = v }),

	// How pods are held to their egress bandwidth with eBPF: for the environment, too.
	choice("egressBandwidthShaping", "EgressBandwidthShaping", "Queues", []string{"Queues", "DepartureTimes"},
		func(e *Effective, v string) { e.Departures = v == "DepartureTimes" }),

	// Hubble's API by TCP: for the environment, too.
	integer("hubblePort", "HubblePort", 0, 0, 65535, func(e *Effective, v int) { e.Hubble.Port = uint16(v) }),
	verbatim("hubbleCertFile", "HubbleCertFile", "", func(e *Effective, v string) { e.Hubble.CertFile = v }),
	verbatim("hubbleKeyFile", "HubbleKeyFile", "", func(e *Effective, v string) { e.Hubble.KeyFile = v }),
	verbatim("hubbleCAFile", "HubbleCAFile", "", func(e *Effective, v string) { e.Hubble.CAFile = v }),
	verbatim("hubbleClientGroup", "HubbleClientGroup", "", func(e *Effective, v string) { e.Hubble.ClientGroup = v }),

	// nftables.
	ineffective("nftablesFilterAllowAction", "NftablesFilterAllowAction", "ACCEPT", "what policy allows does not pass other rules of the host's"),
	unsupported("nftablesFilterDenyAction", "NftablesFilterDenyAction", "DROP"),
	unsupported("nftablesMangleAllowAction", "NftablesMangleAllowAction", "ACCEPT"),
	unsupported("nftablesMarkMask", "NftablesMarkMask", "4294901760", "0xffff0000"),
	unsupported("nftablesRefreshInterval", "NftablesRefreshInterval", "180s"),

	// eBPF.
	unsupported("bpfAttachType", "BPFAttachType", "Netkit", "TCX"),
	unsupported("bpfCTLBLogFilter", "BPFCTLBLogFilter", ""),
	connectTimeEnabled(), // before the newer field, so that this wins when both are set
	choice("bpfConnectTimeLoadBalancing", "BPFConnectTimeLoadBalancing", "TCP", []string{"TCP", "Enabled", "Disabled"},
		func(e *Effective, v string) { e.Settings.ConnectTime = model.ConnectTimeLB(v) }),
	unsupported("bpfConntrackMode", "BPFConntrackCleanupMode", "Auto"),
	unsupported("bpfConntrackLogLevel", "BPFConntrackLogLevel", "off"),
	{name: "bpfConntrackTimeouts", env: "BPFConntrackTimeouts", def: "TCPSynSent=20s,TCPEstablished=1h,TCPFinsSeen=Auto,TCPResetSeen=40s,UDPTimeout=60s,ICMPTimeout=5s,GenericTimeout=10m",
		allow: "durations 1s..168h or Auto", apply: applyTimeouts},
	cidrs("bpfDSROptoutCIDRs", "BPFDSROptoutCIDRs", func(e *Effective, v []netip.Prefix) { e.Settings.DSROptOut = v }),
	pattern("bpfDataIfacePattern", "BPFDataIfacePattern", `^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)`,
		func(e *Effective, v string) { e.Settings.DataIfaces = v }),
	unsupported("bpfDisableGROForIfaces", "BPFDisableGROForIfaces", ""),
	unsupported("bpfDisableUnprivileged", "BPFDisableUnprivileged", "true"),
	bpfEnabled(),
	choice("bpfEnforceRPF", "BPFEnforceRPF", "Loose", []string{"Disabled", "Loose", "Strict"},
		func(e *Effective, v string) { e.Settings.RPFStrict = v == "Strict" }),
	cidrs("bpfExcludeCIDRsFromNAT", "BPFExcludeCIDRsFromNAT", func(e *Effective, list []netip.Prefix) { e.Settings.ExcludeFromNAT = list }),
	integer("bpfExportBufferSizeMB", "BPFExportBufferSizeMB", 1, 1, 64, func(e *Effective, v int) { e.EventsMB = v }),
	unsupported("bpfExtToServiceConnmark", "BPFExtToServiceConnmark", "0"),
	choice("bpfExternalServiceMode", "BPFExternalServiceMode", "tunnel", []string{"Tunnel", "DSR"},
		func(e *Effective, v string) { e.Settings.DSR = v == "DSR" }),
	unsupported("bpfForceTrackPacketsFromIfaces", "BPFForceTrackPacketsFromIfaces", `["docker+"]`, "docker+"),
	unsupported("bpfHostConntrackBypass", "BPFHostConntrackBypass", "false"),
	choice("bpfHostNetworkedNATWithoutCTLB", "BPFHostNetworkedNATWithoutCTLB", "Enabled", []string{"Enabled", "Disabled"},
		func(e *Effective, v string) { e.Settings.HostNAT = v == "Enabled" }),
	integer("bpfIPFragTimeout", "BPFIPFragTimeout", 0, 1, 600, func(e *Effective, v int) {
		if v != 0 && e.Settings.Timeouts.Fragment != 0 {
			e.Settings.Timeouts.Fragment = time.Duration(v) * time.Second
		}
	}, 0),
	boolean("bpfIPFragmentReassemblyEnabled", "BPFIPFragmentReassemblyEnabled", true, func(e *Effective, v bool) {
		if !v {
			e.Settings.Timeouts.Fragment = 0
		}
	}),
	unsupported("bpfJITHardening", "BPFJITHardening", "Auto", "Strict"), // Weir never lowers it
	integer("bpfKubeProxyHealthzPort", "BPFKubeProxyHealthzPort", 10256, 0, 65535, func(e *Effective, v int) { e.HealthzPort = uint16(v) }),
	boolean("bpfKubeProxyIptablesCleanupEnabled", "BPFKubeProxyIptablesCleanupEnabled", true, func(e *Effective, v bool) { e.KubeProxyCleanup = v }),
	unsupported("bpfKubeProxyMinSyncPeriod", "BPFKubeProxyMinSyncPeriod", "1s"),
	unsupported("bpfL3IfacePattern", "BPFL3IfacePattern", ""),
	unsupported("bpfLogFilters", "BPFLogFilters", ""),
	unsupported("bpfLogLevel", "BPFLogLevel", "off"),
	unsupported("bpfMaglevMaxEndpointsPerService", "BPFMaglevMaxEndpointsPerService", "100"),
	unsupported("bpfMaglevMaxServices", "BPFMaglevMaxServices", "100"),
	integer("bpfMapSizeConntrack", "BPFMapSizeConntrack", 512000, 1024, 16<<20, func(e *Effective, v int) { e.Settings.MaxFlows = v }),
	unsupported("bpfMapSizeConntrackCleanupQueue", "BPFMapSizeConntrackCleanupQueue", "100000"),
	choice("bpfMapSizeConntrackScaling", "BPFMapSizeConntrackScaling", "DoubleIfFull", []string{"Disabled", "DoubleIfFull"},
		func(e *Effective, v string) { e.MapSizes.ConntrackDoubles = v == "DoubleIfFull" }),
	integer("bpfMapSizeIPSets", "BPFMapSizeIPSets", 1048576, 1024, 16<<20, func(e *Effective, v int) { e.MapSizes.IPSets, e.Settings.MaxNetworks = v, v }),
	unsupported("bpfMapSizeIfState", "BPFMapSizeIfState", "1000"),
	integer("bpfMapSizeNATAffinity", "BPFMapSizeNATAffinity", 65536, 1024, 16<<20, func(e *Effective, v int) { e.MapSizes.NATAffinity = v }),
	integer("bpfMapSizeNATBackend", "BPFMapSizeNATBackend", 262144, 1024, 16<<20, func(e *Effective, v int) { e.MapSizes.NATBackend, e.Settings.MaxBackends = v, v }),
	integer("bpfMapSizeNATFrontend", "BPFMapSizeNATFrontend", 65536, 1024, 16<<20, func(e *Effective, v int) { e.MapSizes.NATFrontend, e.Settings.MaxFrontends = v, v }),
	unsupported("bpfMapSizePerCpuConntrack", "BPFMapSizePerCPUConntrack", "0"),
	integer("bpfMapSizeRoute", "BPFMapSizeRoute", 262144, 1024, 16<<20, func(e *Effective, v int) { e.MapSizes.Route = v }),
	unsupported("bpfOverlayHostSourceIP", "BPFOverlayHostSourceIP", "TunnelAddress"),
	portRange("bpfPSNATPorts", "BPFPSNATPorts", "20000:29999",
		func(e *Effective, first, last uint16) {
			e.Settings.SNATPortFirst, e.Settings.SNATPortLast = first, last
		}),
	unsupported("bpfPolicyDebugEnabled", "BPFPolicyDebugEnabled", "true", "false"),
	unsupported("bpfRedirectToPeer", "BPFRedirectToPeer", "Enabled"),

	// IPIP overlay.
	toggle("ipipEnabled", "IpInIpEnabled", func(e *Effective, v model.Toggle) []string {
		e.Settings.IPIP = v
		if v == model.Off {
			return []string{" = false: no pool's ipipMode is in force; what goes to its pods on other nodes goes without a tunnel"}
		}
		return nil
	}),
	integer("ipipMTU", "IpInIpMtu", 0, 576, 65515, func(e *Effective, v int) { e.Settings.IPIPMTU = v }, 0),

	// VXLAN overlay.
	unsupported("vxlanEnabled", "VXLANEnabled", ""),
	integer("vxlanMTU", "VXLANMTU", 0, 576, 65485, func(e *Effective, v int) { e.Settings.VXLANMTU = v }, 0),
	unsupported("vxlanMTUV6", "VXLANMTUV6", "0"),
	integer("vxlanPort", "VXLANPort", 4789, 1, 65535, func(e *Effective, v int) { e.Settings.VXLANPort = uint16(v) }),
	integer("vxlanVNI", "VXLANVNI", 4096, 1, 1<<24-1, func(e *Effective, v int) { e.Settings.VXLANVNI = uint32(v) }),

	// Wireguard.
	boolean("wireguardEnabled", "WireguardEnabled", false, func(e *Effective, v bool) { e.Settings.WireGuard.IPv4.Enabled = v }),
	boolean("wireguardEnabledV6", "WireguardEnabledV6", false, func(e *Effective, v bool) { e.Settings.WireGuard.IPv6.Enabled = v }),
	boolean("wireguardHostEncryptionEnabled", "WireguardHostEncryptionEnabled", false, func(e *Effective, v bool) { e.Settings.WireGuard.Hosts = v }),
	text("wireguardInterfaceName", "WireguardInterfaceName", "wireguard.cali", devicePattern, deviceWords, func(e *Effective, v string) { e.Settings.WireGuard.IPv4.Interface = v }),
	text("wireguardInterfaceNameV6", "WireguardInterfaceNameV6", "wg-v6.cali", devicePattern, deviceWords, func(e *Effective, v string) { e.Settings.WireGuard.IPv6.Interface = v }),
	integer("wireguardListeningPort", "WireguardListeningPort", 51820, 1, 65535, func(e *Effective, v int) { e.Settings.WireGuard.IPv4.Port = uint16(v) }),
	integer("wireguardListeningPortV6", "WireguardListeningPortV6", 51821, 1, 65535, func(e *Effective, v int) { e.Settings.WireGuard.IPv6.Port = uint16(v) }),
	integer("wireguardMTU", "WireguardMTU", 0, 576, 65455, func(e *Effective, v int) { e.Settings.WireGuard.IPv4.MTU = v }, 0),
	integer("wireguardMTUV6", "WireguardMTUV6", 0, 1350, 65455, func(e *Effective, v int) { e.Settings.WireGuard.IPv6.MTU = v }, 0),
	wireguardKeepAlive(),
	integer("wireguardRoutingRulePriority", "WireguardRoutingRulePriority", 99, 1, 32765, func(e *Effective, v int) { e.Settings.WireGuard.RulePriority = v }),
	unsupported("wireguardThreadingEnabled", "WireguardThreadingEnabled", "false"),

	// kube-proxy's option nodePortAddresses. No FelixConfiguration has it: it is for the
	// environment.
	nodePortAddresses(),

	// What would go to pods of other nodes in clear is dropped. No FelixConfiguration has it.
	boolean("wireguardStrict", "WireguardStrict", false, func(e *Effective, v bool) { e.Settings.WireGuard.Strict = v }),

	// What spec.externalIPs of Services may name. No FelixConfiguration has it either.
	serviceExternalIPs(),

	// Whose CNI plugin pods have. No FelixConfiguration has it: it is for the environment.
	choice("cniChaining", "CNIChaining", "Disabled", []string{"Disabled", "generic", "aws-vpc-cni", "azure-cni", "azure-cni-overlay"},
		func(e *Effective, v string) { e.Settings.Chained = v != "Disabled" }),

	// AWS integration, for the controller.
	choice("awsSrcDstCheck", "AWSSrcDstCheck", SrcDstDoNothing, []string{SrcDstDoNothing, SrcDstEnable, SrcDstDisable},
		func(e *Effective, v string) { e.SrcDstCheck = v }),
}, otherAgents...)

// connectTimeEnabled is the older form of bpfConnectTimeLoadBalancing; true means Enabled, and
// false leaves the decision to the newer field, whose default is TCP.
func connectTimeEnabled() field {
	return boolean("bpfConnectTimeLoadBalancingEnabled", "BPFConnectTimeLoadBalancingEnabled", false, func(e *Effective, v bool) {
		if v {
			e.Settings.ConnectTime = model.ConnectTimeEnabled
		}
	})
}

// metricsClientAuth keeps a word that is none of the four too: without knowing what is asked for,
// metrics are not served.
func metricsClientAuth() field {
	return verbatim("prometheusMetricsClientAuth", "PrometheusMetricsClientAuth", NoClientCert, func(e *Effective, v string) {
		for _, known := range []string{NoClientCert, RequireAnyClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert} {
			if strings.EqualFold(v, known) {
				v = known
			}
		}
		e.Metrics.TLS.ClientAuth = v
	})
}

// nodePortAddresses is a list of CIDRs, or the word primary.
func nodePortAddresses() field {
	f := cidrs("nodePortAddresses", "NodePortAddresses", func(e *Effective, list []netip.Prefix) {
		e.Settings.NodePorts = model.NodePortAddresses{CIDRs: list}
	})
	list := f.apply
	f.allow = "primary, or " + f.allow
	f.apply = func(e *Effective, text string) ([]string, error) {
		if !strings.EqualFold(strings.Trim(text, ` []"`), "primary") {
			return list(e, text)
		}
		e.Settings.NodePorts = model.NodePortAddresses{Primary: true}
		return nil, nil
	}
	return f
}

// serviceExternalIPs is a list of CIDRs, or the word none.
func serviceExternalIPs() field {
	f := cidrs("serviceExternalIPs", "ServiceExternalIPs", func(e *Effective, list []netip.Prefix) {
		e.Settings.ServiceExternalIPs = append([]netip.Prefix{}, list...) // nil is every address
	})
	list := f.apply
	f.allow = "none, or " + f.allow
	f.apply = func(e *Effective, text string) ([]string, error) {
		if strings.EqualFold(strings.Trim(text, ` []"`), "none") {
			text = "[]"
		}
		return list(e, text)
	}
	return f
}

// wireguardKeepAlive is a duration of whole seconds, which is what WireGuard has.
func wireguardKeepAlive() field {
	return field{name: "wireguardKeepAlive", env: "WireguardPersistentKeepAlive", def: "0", same: []string{"0s"}, allow: "a duration 0s..65535s",
		apply: func(e *Effective, text string) ([]string, error) {
			d, err := duration(strings.TrimSpace(text))
			if err != nil {
				return nil, errors.New("is no duration such as 25s")
			}
			if d < 0 || d > 65535*time.Second || d%time.Second != 0 {
				return nil, errors.New("is not a number of whole seconds, 0s..65535s")
			}
			e.Settings.WireGuard.KeepAlive = int(d / time.Second)
			return nil, nil
		}}
}

// bpfEnabled chooses the data plane. Unset is eBPF where the kernel can, whatever the default was
// elsewhere.
func bpfEnabled() field {
	return boolean("bpfEnabled", "BPFEnabled", false, func(e *Effective, on bool) { e.NFTables = !on })
}

var byName, byEnv = index()

func index() (names, envs map[string]*field) {
	names, envs = map[string]*field{}, map[string]*field{}
	for i := range fields {
		f := &fields[i]
		names[f.name] = f
		envs[strings.ToLower(f.name)] = f
		envs[strings.ToLower(f.env)] = f
	}
	return names, envs
}
