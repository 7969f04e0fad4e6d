// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/agent/remembered"
	"github.com/weir-net/weir/internal/agent/tablesize"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/model"
)

// ebpfPlane is that of eBPF.
type ebpfPlane struct{ *ebpf.Driver }

// Name is that in a NodeStatus.
func (p ebpfPlane) Name() string { return planeEBPF }

func (p ebpfPlane) traits() traits {
	return traits{uplinks: true, connections: problems.ConnectionTable{Share: "more than an eighth of the connection table", Setting: "FelixConfiguration spec.bpfMapSizeConntrack"}}
}

// Events begins to read events.
func (p ebpfPlane) Events() (events.Source, error) { return p.Driver.Events() }

// preload loads the programs that another layout of maps needs while the agent before works: as far
// as what it wrote down says, they are to be the same when its place is taken. Without them they
// are loaded then.
func (a *Agent) preload() {
	resolver := config.New(a.opts.Node, a.opts.Environ, remembered.OpenLastGood(a.opts.StateDir, a.log).Load())
	resolver.ReadLinux(kernel.Sysctl)
	e := resolver.AtStart()
	o, err := a.ebpfOptions(e, tablesize.Open(a.opts.StateDir, a.log).Entries(e))
	if err == nil {
		a.preloaded, err = ebpf.Preload(o)
	}
	if err != nil {
		a.log.Warn("the programs are loaded when the other agent's place is taken", "error", err)
	}
}

// openEBPF opens the eBPF driver.
func (a *Agent) openEBPF(e config.Effective) (p ebpfPlane, err error) {
	o, err := a.ebpfOptions(e, a.conntrackSize.Entries(e))
	if err != nil {
		return p, err
	}
	for _, f := range a.kernelFindings {
		if f.Err != nil {
			a.log.Warn("the kernel lacks something that Weir can do without", "feature", f.Name, "since", f.Since, "without it", f.Fallback)
		}
	}
	o.Import, o.Left = a.planes.connectionsToImport(nft.There, kubeproxy.RulesThere), nft.Left
	o.Preloaded = a.preloaded
	d, err := ebpf.New(o)
	if err != nil {
		return p, fmt.Errorf("opening the eBPF data plane: %w", err)
	}
	return ebpfPlane{d}, nil
}

// ebpfOptions finds what the eBPF driver needs of the machine, with a connection table of so many
// flows.
func (a *Agent) ebpfOptions(e config.Effective, flows int) (o ebpf.Options, err error) {
	cgroup := a.opts.Cgroup
	if cgroup == "" {
		cgroup = e.CgroupV2Path
	}
	if cgroup == "" {
		if cgroup, err = kernel.CgroupV2(); err != nil {
			return o, err
		}
	}
	lacks := func(feature string) bool {
		return slices.ContainsFunc(a.kernelFindings, func(f kernel.Finding) bool { return f.Name == feature && f.Err != nil })
	}
	return ebpf.Options{
		Logger: a.log.With("part", "ebpf"), BPFFS: a.opts.BPFFS, BPFFSMount: a.opts.BPFFSMount, Cgroup: cgroup,
		SetRetval: !lacks(kernel.FeatureSetRetval), NoTCX: lacks(kernel.FeatureTCX), Sizes: mapSizes(e, flows), FlowRecords: e.FlowRecords, Gateways: e.Settings.Egress != model.EgressDisabled, Departures: e.Departures, InBackground: true,
	}, nil
}

// powerOf2 is the least power of 2 that is at least n.
func powerOf2(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// recordsRing is the size of the ring of flow records, bytes: at 50,000 flows a second it is read
// four times before it is full.
const recordsRing = 16 << 20

// mapSizes are the sizes of maps by the name of the map, with that of the connection table.
func mapSizes(e config.Effective, flows int) map[string]uint32 {
	records := uint32(0) // as compiled: nothing is written there
	if e.FlowRecords > 0 {
		records = recordsRing
	}
	return map[string]uint32{
		"weir_records":    records,
		tablesize.FlowMap: uint32(flows), "weir_flows_new": uint32(max(flows/4, 1024)),
		"weir_services": uint32(e.MapSizes.NATFrontend), "weir_backends": uint32(e.MapSizes.NATBackend), "weir_live": uint32(e.MapSizes.NATBackend),
		"weir_affinity": uint32(e.MapSizes.NATAffinity), "weir_addrs": uint32(e.MapSizes.Route), "weir_routes": uint32(e.MapSizes.Route),
		"weir_peers": uint32(e.MapSizes.IPSets), "weir_peer_cidrs": uint32(e.MapSizes.IPSets), "weir_events": uint32(powerOf2(e.EventsMB)) << 20,
	}
}
