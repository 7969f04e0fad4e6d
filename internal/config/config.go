// SPDX-License-Identifier: Apache-2.0

// Package config makes the effective settings of a node out of the FelixConfiguration resources and
// the daemon's environment: the environment wins over FelixConfiguration node.<name>, which wins
// over FelixConfiguration default, which wins over the documented default. A value that is not
// valid is reported, and the last good one stays in force. A field that has no effect yet is
// reported when it is set to something else than its default.
package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// Effective is what is in force on this node.
type Effective struct {
	Settings model.Settings
	Health   Endpoint
	Metrics  Metrics
	// HealthzPort is bpfKubeProxyHealthzPort: where load balancers ask for the node, on every
	// address; 0 = nowhere.
	HealthzPort uint16
	// KubeProxyCleanup is bpfKubeProxyIptablesCleanupEnabled: what a kube-proxy that is gone left
	// is removed.
	KubeProxyCleanup bool
	// CgroupV2Path is the folder of the unified control group hierarchy whose sockets are this
	// node's; empty = the root of the hierarchy.
	CgroupV2Path string
	// NFTables asks for the data plane nftables (bpfEnabled: false), in force from the start of the
	// agent on.
	NFTables bool
	// MapSizes are the sizes of maps, in force from the start of the agent on.
	MapSizes MapSizes
	// EventsMB is the size of the ring of events, in force from the start of the agent on.
	EventsMB int
	// FlowRecords is after how long open flows are reported (flowLogsFlushInterval); 0 = flows are
	// not accounted for (flowLogsLocalReporter). The agent starts anew when it changes.
	FlowRecords time.Duration
	// FlowAggregation says which connections become one record at the end of an interval: 0 = none,
	// 1 = allowed ones that differ in their source ports alone.
	FlowAggregation int
	// FlowsKept is how many records of flows are kept, in force from the start of the agent on.
	FlowsKept int
	// Departures is egressBandwidthShaping DepartureTimes, in force from the start of the agent on.
	Departures bool
	// Hubble is where Hubble's API is served by TLS, besides its socket, in force from the start of
	// the agent on.
	Hubble Hubble
	// SrcDstCheck is awsSrcDstCheck: what the controller makes of EC2's source/destination check.
	SrcDstCheck string

	flowInterval time.Duration            // flowLogsFlushInterval
	linux        map[string]time.Duration // see ReadLinux
}

// The values of SrcDstCheck.
const (
	SrcDstDoNothing = "DoNothing"
	SrcDstEnable    = "Enable"
	SrcDstDisable   = "Disable"
)

// MapSizes are entries of the data plane's maps. The size of the connection table is
// Settings.MaxFlows.
type MapSizes struct {
	NATFrontend, NATBackend, NATAffinity, Route, IPSets int
	ConntrackDoubles                                    bool // the connection table, when it is nearly full
}

// Hubble is a port, 0 = none, and the files that it is protected by.
type Hubble struct {
	Port                      uint16
	CertFile, KeyFile, CAFile string
	ClientGroup               string // the organization that certificates of clients need; empty = any
}

// Endpoint is where something listens.
type Endpoint struct {
	Enabled bool
	Host    string // empty = every address
	Port    uint16
}

// Metrics says what is offered to Prometheus, and where.
type Metrics struct {
	Endpoint
	Go, Process bool
	TLS         MetricsTLS
}

// MetricsTLS says how metrics are protected. What is not in force exactly, the agent does not serve
// metrics without.
type MetricsTLS struct {
	CAFile, CertFile, KeyFile string
	ClientAuth                string // as it was written, where it is none of the four
}

// The values of ClientAuth.
const (
	NoClientCert               = "NoClientCert"
	RequireAnyClientCert       = "RequireAnyClientCert"
	VerifyClientCertIfGiven    = "VerifyClientCertIfGiven"
	RequireAndVerifyClientCert = "RequireAndVerifyClientCert"
)

// Wanted reports whether metrics are to be served by TLS alone.
func (t MetricsTLS) Wanted() bool { return t != MetricsTLS{ClientAuth: NoClientCert} }

// DefaultFlowInterval is the default of flowLogsFlushInterval.
const DefaultFlowInterval = 15 * time.Second

// Default returns the documented defaults.
func Default() Effective {
	return Effective{
		Settings: model.DefaultSettings(),
		Health:   Endpoint{Host: "localhost", Port: 9099},
		Metrics:  Metrics{Endpoint: Endpoint{Port: 9091}, Go: true, Process: true, TLS: MetricsTLS{ClientAuth: NoClientCert}},

		HealthzPort: 10256, KubeProxyCleanup: true,
		MapSizes: MapSizes{NATFrontend: 65536, NATBackend: 262144, NATAffinity: 65536, Route: 262144, IPSets: 1048576, ConntrackDoubles: true},
		EventsMB: 1, flowInterval: DefaultFlowInterval, FlowsKept: 32768, SrcDstCheck: SrcDstDoNothing,
	}
}

// Result is Effective with what is to be said about it.
type Result struct {
	Effective
	// Problems are values that are not valid.
	Problems []weirv1.Problem
	// Unsupported are fields that are set but have no effect yet, one line each.
	Unsupported []string
}

// Resolver holds what was configured. It is not safe for concurrent use.
type Resolver struct {
	node string
	env  []setting
	// envProblems are found once: the environment does not change.
	unknownEnv []string
	specs      map[string]map[string]any
	lastGood   map[string]string
	linux      map[string]time.Duration // see ReadLinux
	// read says that what was configured is known. Before that, nothing configured means nothing: a
	// value that was good before a restart is kept for the case that its field's is bad now.
	read bool
}

// setting is one value as it was written.
type setting struct {
	field  *field
	name   string // as written
	text   string
	object string // where: "FelixConfiguration default", "environment of weir-node"
	path   string // field path or variable
}

// New returns a Resolver for the node. environ has the form of os.Environ. lastGood is what
// LastGood returned before a restart, or nil.
func New(node string, environ []string, lastGood map[string]string) *Resolver {
	r := &Resolver{node: node, specs: map[string]map[string]any{}, lastGood: map[string]string{}}
	maps.Copy(r.lastGood, lastGood)
	for _, kv := range environ {
		name, text, _ := strings.Cut(kv, "=")
		if len(name) < len(envPrefix) || !strings.EqualFold(name[:len(envPrefix)], envPrefix) || text == "" {
			continue
		}
		f := byEnv[strings.ToLower(name[len(envPrefix):])]
		if f == nil {
			r.unknownEnv = append(r.unknownEnv, fmt.Sprintf("environment of weir-node %s = %q: not known to Weir yet, or misspelt; it has no effect", name, text))
			continue
		}
		r.env = append(r.env, setting{field: f, name: name, text: text, object: "environment of weir-node", path: name})
	}
	slices.Sort(r.unknownEnv)
	return r
}

const envPrefix = "FELIX_"

// OfNode is the name of the FelixConfiguration of one node.
func OfNode(node string) string { return "node." + node }

// Set records the spec of the FelixConfiguration of a name as decoded JSON; nil when it is gone.
// Those of other nodes are ignored. It reports whether the name concerns this node.
func (r *Resolver) Set(name string, spec map[string]any) bool {
	if name != "default" && name != OfNode(r.node) {
		return false
	}
	r.read = true
	if spec == nil {
		delete(r.specs, name)
	} else {
		r.specs[name] = spec
	}
	return true
}

// LastGood returns the values that are in force, by field, for New after a restart.
func (r *Resolver) LastGood() map[string]string { return maps.Clone(r.lastGood) }

// Resolve returns what is in force.
func (r *Resolver) Resolve() Result {
	out := Result{Effective: Default()}
	out.linux = r.linux
	if d := r.linux["tcpfinsseen"]; d >= minTimeout && d <= maxTimeout {
		out.Settings.Timeouts.TCPFins = d // Auto is its default
	}
	out.Unsupported = slices.Clone(r.unknownEnv)
	chosen := r.chosen(&out)
	for i := range fields {
		f := &fields[i]
		s, ok := chosen[f.name]
		if !ok {
			if r.read {
				delete(r.lastGood, f.name)
			}
			continue
		}
		if f.apply == nil {
			switch {
			case f.isDefault(s.text):
			case f.never != "":
				out.Unsupported = append(out.Unsupported, fmt.Sprintf("%s %s = %s: not applicable: %s", s.object, s.path, s.text, f.never))
			case f.lacks != "":
				out.Problems = append(out.Problems, weirv1.Problem{Object: s.object, Field: s.path, Value: s.text,
					Message: "is not supported, and has no effect: " + f.lacks, Action: "remove it, and do not rely on it"})
			default:
				out.Unsupported = append(out.Unsupported, fmt.Sprintf("%s %s = %s: not supported yet; it has no effect", s.object, s.path, s.text))
			}
			continue
		}
		r.apply(&out, f, s)
	}
	if out.Settings.SNATPortLast < out.Settings.SNATPortFirst {
		d := model.DefaultSettings()
		out.Settings.SNATPortFirst, out.Settings.SNATPortLast = d.SNATPortFirst, d.SNATPortLast
	}
	out.Settings.AgentPorts = agentPorts(&out.Effective)
	openWireGuard(&out.Settings)
	if w := &out.Settings.WireGuard; w.Hosts && !w.IPv4.Enabled && !w.IPv6.Enabled {
		const name = "wireguardHostEncryptionEnabled"
		s := chosen[name]
		out.Problems = append(out.Problems, weirv1.Problem{Object: s.object, Field: s.path, Value: s.text,
			Message: "has no effect while neither wireguardEnabled nor wireguardEnabledV6 is true: nothing is encrypted", Action: "set one of these, or remove it"})
	}
	return out
}

// openWireGuard makes the ports of WireGuard failsafe while it is on: who listens there takes what
// peers encrypted and nothing else, and policies of before do not know of it.
func openWireGuard(s *model.Settings) {
	for _, d := range []model.WireGuardDevice{s.WireGuard.IPv4, s.WireGuard.IPv6} {
		if d.Enabled {
			port := model.Failsafe{Protocol: model.ProtocolUDP, Port: d.Port}
			s.FailsafeIn, s.FailsafeOut = append(slices.Clone(s.FailsafeIn), port), append(slices.Clone(s.FailsafeOut), port)
		}
	}
}

// agentPorts are the TCP ports on which the agent or the controller listens, now or by default: a
// change of one must not find it taken.
func agentPorts(e *Effective) []uint16 {
	ports := append(model.DefaultAgentPorts(), e.Health.Port, e.Metrics.Port)
	if e.HealthzPort != 0 {
		ports = append(ports, e.HealthzPort)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// AtStart returns what was in force before a restart, as far as nothing else is known yet: for what
// has to be there before the cluster is read, such as maps with their sizes.
func (r *Resolver) AtStart() Effective {
	var known Result
	chosen := r.chosen(&known)
	out := r.Resolve().Effective
	for i := range fields {
		f := &fields[i]
		good, was := r.lastGood[f.name]
		if _, is := chosen[f.name]; is || !was || f.apply == nil {
			continue
		}
		trial := out
		if _, err := f.apply(&trial, good); err == nil {
			out = trial
		}
	}
	return out
}

// chosen picks for each field the setting that wins.
func (r *Resolver) chosen(out *Result) map[string]setting {
	chosen := map[string]setting{}
	for _, name := range []string{"default", OfNode(r.node)} {
		spec := r.specs[name]
		object := "FelixConfiguration " + name
		for _, key := range slices.Sorted(maps.Keys(spec)) {
			text := textOf(spec[key])
			if text == "" {
				continue
			}
			f := byName[key]
			if f == nil {
				out.Unsupported = append(out.Unsupported,
					fmt.Sprintf("%s spec.%s = %s: not known to Weir yet, or misspelt; it has no effect", object, key, text))
				continue
			}
			chosen[f.name] = setting{field: f, name: key, text: text, object: object, path: "spec." + key}
		}
	}
	for _, s := range r.env {
		chosen[s.field.name] = s
	}
	return chosen
}

// apply puts a setting in force, or the last good value of its field when it is not valid.
func (r *Resolver) apply(out *Result, f *field, s setting) {
	trial := out.Effective
	notes, err := f.apply(&trial, s.text)
	if err == nil {
		out.Effective = trial
		r.lastGood[f.name] = s.text
		for _, n := range notes {
			out.Unsupported = append(out.Unsupported, fmt.Sprintf("%s %s%s", s.object, s.path, n))
		}
		return
	}
	stays := "the default " + strconv.Quote(f.def)
	if good, ok := r.lastGood[f.name]; ok {
		trial = out.Effective
		if _, err := f.apply(&trial, good); err == nil {
			out.Effective = trial
			stays = "the last good value " + strconv.Quote(good)
		}
	}
	out.Problems = append(out.Problems, weirv1.Problem{
		Object: s.object, Field: s.path, Value: s.text,
		Message: err.Error() + "; " + stays + " stays in force",
		Action:  "set it to " + f.allowed() + ", or remove it",
	})
}
