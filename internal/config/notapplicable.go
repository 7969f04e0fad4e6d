// SPDX-License-Identifier: Apache-2.0

package config

// Why a field is not applicable.
const (
	noIptables  = "Weir has no rules of iptables and no ipsets"
	noOpenStack = "Weir is for Kubernetes"
	noWindows   = "Weir is for Linux"
	noLogFiles  = "the agent logs to its standard error, at the level of its flag -log-level"
	noReports   = "Weir reports nothing to anybody outside of the cluster"
	noDebug     = "it is about the inner parts of another agent"
	ownXDP      = "what doNotTrack policies deny is dropped in XDP wherever the driver of an uplink has it"
)

// otherAgents are fields of FelixConfiguration about what Weir does not have, so that they are not
// taken for misspelt ones.
var otherAgents = []field{
	notApplicable("iptablesBackend", "IptablesBackend", "Auto", noIptables),
	notApplicable("iptablesFilterAllowAction", "IptablesFilterAllowAction", "Accept", noIptables),
	notApplicable("iptablesFilterDenyAction", "IptablesFilterDenyAction", "Drop", noIptables),
	notApplicable("iptablesLockFilePath", "IptablesLockFilePath", "/run/xtables.lock", noIptables),
	notApplicable("iptablesLockProbeInterval", "IptablesLockProbeIntervalMillis", "50ms", noIptables),
	notApplicable("iptablesLockTimeout", "IptablesLockTimeoutSecs", "0s", noIptables),
	notApplicable("iptablesMangleAllowAction", "IptablesMangleAllowAction", "Accept", noIptables),
	notApplicable("iptablesMarkMask", "IptablesMarkMask", "4294901760", noIptables, "0xffff0000"),
	notApplicable("iptablesNATOutgoingInterfaceFilter", "IptablesNATOutgoingInterfaceFilter", "", noIptables),
	notApplicable("iptablesPostWriteCheckInterval", "IptablesPostWriteCheckIntervalSecs", "1s", noIptables, "5s"),
	notApplicable("iptablesRefreshInterval", "IptablesRefreshInterval", "180s", noIptables, "10s", "90s"),
	notApplicable("ipsetsRefreshInterval", "IpsetsRefreshInterval", "90s", noIptables),
	notApplicable("maxIpsetSize", "MaxIpsetSize", "1048576", noIptables),
	notApplicable("chainInsertMode", "ChainInsertMode", "insert", noIptables),
	notApplicable("featureDetectOverride", "FeatureDetectOverride", "", noIptables),
	notApplicable("disableConntrackInvalidCheck", "DisableConntrackInvalidCheck", "false", noIptables),
	notApplicable("kubeNodePortRanges", "KubeNodePortRanges", `["30000:32767"]`, "node ports are known by their Services", "30000:32767"),
	notApplicable("sidecarAccelerationEnabled", "SidecarAccelerationEnabled", "false", noIptables),
	notApplicable("xdpEnabled", "XDPEnabled", "true", ownXDP),
	notApplicable("genericXDPEnabled", "GenericXDPEnabled", "false", ownXDP),
	notApplicable("xdpRefreshInterval", "XDPRefreshInterval", "90s", ownXDP),
	notApplicable("metadataAddr", "MetadataAddr", "127.0.0.1", noOpenStack),
	notApplicable("metadataPort", "MetadataPort", "8775", noOpenStack),
	notApplicable("openstackRegion", "OpenstackRegion", "", noOpenStack),
	notApplicable("reportingInterval", "ReportingIntervalSecs", "30s", noOpenStack, "0s"),
	notApplicable("reportingTTL", "ReportingTTLSecs", "90s", noOpenStack, "0s"),
	notApplicable("endpointReportingEnabled", "EndpointReportingEnabled", "false", noOpenStack),
	notApplicable("endpointReportingDelay", "EndpointReportingDelaySecs", "1s", noOpenStack),
	notApplicable("windowsManageFirewallRules", "WindowsManageFirewallRules", "Disabled", noWindows),
	notApplicable("logPrefix", "LogPrefix", "calico-packet", "what rules with action Log match is an event of `weir monitor`"),
	notApplicable("logFilePath", "LogFilePath", "/var/log/calico/felix.log", noLogFiles, "none"),
	notApplicable("logSeverityFile", "LogSeverityFile", "Info", noLogFiles),
	notApplicable("logSeverityScreen", "LogSeverityScreen", "Info", noLogFiles),
	notApplicable("logSeveritySys", "LogSeveritySys", "Info", noLogFiles),
	notApplicable("logDebugFilenameRegex", "LogDebugFilenameRegex", "", noLogFiles),
	notApplicable("usageReportingEnabled", "UsageReportingEnabled", "true", noReports, "false"),
	notApplicable("usageReportingInitialDelay", "UsageReportingInitialDelaySecs", "300s", noReports),
	notApplicable("usageReportingInterval", "UsageReportingIntervalSecs", "86400s", noReports),
	notApplicable("useInternalDataplaneDriver", "UseInternalDataplaneDriver", "true", noDebug),
	notApplicable("dataplaneDriver", "DataplaneDriver", "calico-iptables-plugin", noDebug),
	notApplicable("featureGates", "FeatureGates", "", noDebug),
	notApplicable("debugMemoryProfilePath", "DebugMemoryProfilePath", "", noDebug),
	notApplicable("debugDisableLogDropping", "DebugDisableLogDropping", "false", noDebug),
	notApplicable("debugSimulateCalcGraphHangAfter", "DebugSimulateCalcGraphHangAfter", "0s", noDebug),
	notApplicable("debugSimulateDataplaneHangAfter", "DebugSimulateDataplaneHangAfter", "0s", noDebug),
	notApplicable("debugSimulateDataplaneApplyDelay", "DebugSimulateDataplaneApplyDelay", "0s", noDebug),
	notApplicable("debugHost", "DebugHost", "localhost", noDebug),
	notApplicable("debugPort", "DebugPort", "0", noDebug),
	notApplicable("bpfProfiling", "BPFProfiling", "Disabled", noDebug),
	notApplicable("bpfKubeProxyEndpointSlicesEnabled", "BPFKubeProxyEndpointSlicesEnabled", "true", "EndpointSlices are always read"),
	notApplicable("goGCThreshold", "GoGCThreshold", "40", "the agent collects garbage when a change is over"),
	notApplicable("goMemoryLimitMB", "GoMemoryLimitMB", "-1", "GOMEMLIMIT in the agent's environment is for it"),
	notApplicable("goMaxProcs", "GoMaxProcs", "-1", "GOMAXPROCS in the agent's environment is for it"),
	unsupported("flowLogsPolicyEvaluationMode", "FlowLogsPolicyEvaluationMode", "Continuous"),
	unsupported("flowLogsCollectorDebugTrace", "FlowLogsCollectorDebugTrace", "false"),
	unsupported("flowLogsGoldmaneServer", "FlowLogsGoldmaneServer", ""),
}

// notApplicable is a field that is about what Weir does not have; why follows "not applicable: ".
func notApplicable(name, env, def, why string, same ...string) field {
	return field{name: name, env: env, def: def, same: same, never: why}
}
