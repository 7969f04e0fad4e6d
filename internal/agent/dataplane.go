// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/flowlog"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/agent/vmflows"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/handover"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/why"
)

// dataPlane is a data plane as the agent uses it: what a driver is, and what it reports.
type dataPlane interface {
	handover.Predecessor
	enforcementChecker
	vmflows.DataPlane
	Run(ctx context.Context) error
	dataplane.Reporter
	Events() (events.Source, error)
	Listen(on bool) error
	why.DataPlane
	flowlog.DataPlane
	traits() traits
}

// traits are in what data planes differ, as far as the agent is concerned.
type traits struct {
	// alongsideProxy: a kube-proxy of the node may go on carrying Services.
	alongsideProxy bool
	// uplinks: policy is in force on interfaces with programs alone.
	uplinks bool
	// sharedEvents: somebody else may have what events are read from.
	sharedEvents bool
	// connections is the table whose shares pods have.
	connections problems.ConnectionTable
	// never is what no node with this data plane does, whatever is asked. The text names no node:
	// those of all nodes are reported once.
	never []string
}

// nftablesPlane is the data plane nftables.
type nftablesPlane struct{ *nft.Driver }

// Name is that in a NodeStatus.
func (p nftablesPlane) Name() string { return planeNFTables }

func (p nftablesPlane) traits() traits {
	return traits{alongsideProxy: true, sharedEvents: true,
		connections: problems.ConnectionTable{Share: "more than a quarter of what is free of connection tracking", Setting: "net.netfilter.nf_conntrack_max"},
		never:       []string{"nodes with the data plane nftables: of dropped packets those are counted that policy denied"}}
}

// Events begins to read events.
func (p nftablesPlane) Events() (events.Source, error) { return p.Driver.Events() }

// planeChoice remembers which data plane the node has, and whether the other one's remains may
// still be there.
type planeChoice struct {
	NFTables bool `json:"standard"` // the name in files of earlier versions, too
	Other    bool `json:"other"`
	Known    bool `json:"known"`
}

// planeChooser chooses the node's data plane at the agent's start.
type planeChooser struct {
	file    *statefile.File[planeChoice]
	log     *slog.Logger
	choice  planeChoice
	unsaved bool // the file does not say what choice says
	bpffs   string

	mu    sync.Mutex
	lacks error // what of the kernel rules eBPF out
}

func openPlaneChooser(stateDir, bpffs string, log *slog.Logger) *planeChooser {
	p := &planeChooser{file: statefile.New[planeChoice](filepath.Join(stateDir, "dataplane.json"), log), log: log, bpffs: bpffs}
	p.choice = p.file.Load()
	return p
}

// choose decides between eBPF and nftables: as was in force before, at the first start as the
// environment says, and without eBPF where the kernel cannot carry it.
func (p *planeChooser) choose(e config.Effective, lacks error) (nftables bool) {
	p.mu.Lock()
	p.lacks = lacks
	p.mu.Unlock()
	want := p.choice.NFTables
	if !p.choice.Known {
		want = e.NFTables
	}
	if lacks != nil && !want {
		want = true
		p.log.Error("this kernel cannot carry the eBPF data plane; nftables takes its place", "error", lacks)
	}
	if err := p.note(want); err != nil {
		p.log.Error("remembering which data plane the node has; trying again, and what the other one left stays until then", "error", err)
	}
	return want
}

// note remembers a choice, before anything is done about it. Where none was known, or another one,
// the other data plane may have left something.
func (p *planeChooser) note(nftables bool) error {
	if p.choice.Known && p.choice.NFTables == nftables {
		return nil
	}
	p.choice = planeChoice{NFTables: nftables, Other: true, Known: true}
	return p.save()
}

// save writes the choice where the next start finds it.
func (p *planeChooser) save() error {
	err := p.file.Save(p.choice)
	p.unsaved = err != nil
	return err
}

// changed reports whether another data plane is asked for than the one in force.
func (p *planeChooser) changed(e config.Effective) bool {
	return e.NFTables != p.choice.NFTables && (e.NFTables || p.lacking() == nil)
}

// lacking is what of the kernel rules eBPF out, as far as it is known yet.
func (p *planeChooser) lacking() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lacks
}

// problem is what weir status says of a node that has not the data plane that it is asked to have.
func (p *planeChooser) problem(node string, e config.Effective) []weirv1.Problem {
	lacks := p.lacking()
	if lacks == nil || e.NFTables {
		return nil
	}
	return []weirv1.Problem{{Object: "Node " + node, Field: "bpfEnabled", Message: "this kernel cannot carry the eBPF data plane, nftables is in force: " + lacks.Error(),
		Action: "use a newer kernel, or set bpfEnabled: false for this node"}}
}

// connectionsToImport says what eBPF takes over of connection tracking at this start: what our
// tables translated where they are, else what a kube-proxy did where its rules are. What is not
// known counts as there, but evaluates nothing.
func (p *planeChooser) connectionsToImport(tables, rules func() (bool, error)) flowhandover.ImportScope {
	if !p.choice.Other {
		return flowhandover.ImportNone
	}
	ours, err := tables()
	if err != nil {
		p.log.Warn("it is not known whether the data plane nftables was in force; of its connections those that were translated are taken over", "error", err)
	}
	switch {
	case err != nil: // nothing may be there to evaluate what programs pass
		return flowhandover.ImportTranslated
	case ours:
		return flowhandover.ImportAll
	}
	theirs, err := rules()
	if err != nil {
		p.log.Warn("it is not known whether a kube-proxy balanced connections; they are taken over as if one did", "error", err)
	}
	if theirs || err != nil {
		return flowhandover.ImportTranslated
	}
	return flowhandover.ImportNone
}

// Names of the data planes in a NodeStatus.
const (
	planeEBPF     = "eBPF"
	planeNFTables = "nftables"
)

// watchProxies finds out whether a kube-proxy carries Services here. It is called before the
// cluster's goroutine runs.
func (a *Agent) watchProxies() {
	before, alongside := conntrack.Keep, a.driver.traits().alongsideProxy
	if alongside {
		before = nil // the data plane's own tables keep translation up
	}
	a.proxies = kubeproxy.New(kubeproxy.Config{Log: a.log.With("part", "kubeproxy"), Pod: a.cluster.kubeProxy, Alongside: alongside, Before: before,
		Enabled: func() bool { return a.cluster.snapshot().config.KubeProxyCleanup }, Changed: a.cluster.noteHandling})
}
