package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// plane is a data plane as the agent uses it: what a driver is, and what it can tell.
type plane interface {
	dataplane.Driver
	enforced
	Run(ctx context.Context) error
	Status() ebpf.Status
	Drops() ([]ebpf.Drop, error)
	Fallen() (ebpf.Fallen, error)
	Pressures() []ebpf.Pressure
	Held() ([]ebpf.Held, error)
	Spent() ([]ebpf.Spent, error)
	LostEvents() (ebpf.LostEvents, error)
	Answers() (map[string]uint64, error)
	Events() (events.Source, error)
	Listen(on bool) error
	Places() ebpf.Places
	IfIndex(a nodestate.Addr) int
	Programs(names []string) (*ebpf.Rehearsal, error)
	Prove(r *ebpf.Rehearsal, program string, ifindex int, six bool) (ebpf.Proof, error)
}

// errNotByNFT is the answer to what only programs can be asked.
var errNotByNFT = errors.New("this node has the data plane of standard Linux (bpfEnabled: false), which cannot be asked this; its rules are told by nft list table ip weir")

// ebpfPlane is that of eBPF.
type ebpfPlane struct{ *ebpf.Driver }

// Programs loads second instances of programs.
func (p ebpfPlane) Programs(names []string) (*ebpf.Rehearsal, error) { return p.Driver.Rehearse(names) }

// Events begins to read events.
func (p ebpfPlane) Events() (events.Source, error) { return p.Driver.Events() }

// standardPlane is the data plane of standard Linux. What only eBPF has is absent.
type standardPlane struct{ *nft.Driver }

func (p standardPlane) Enforced(ep model.LocalEndpoint) error { return p.Driver.Enforced(ep) }
func (p standardPlane) Pressures() []ebpf.Pressure            { return nil }
func (p standardPlane) Held() ([]ebpf.Held, error)            { return nil, nil }
func (p standardPlane) Spent() ([]ebpf.Spent, error)          { return nil, nil }
func (p standardPlane) LostEvents() (ebpf.LostEvents, error) {
	return ebpf.LostEvents{Full: p.Driver.LostEvents()}, nil
}
func (p standardPlane) Answers() (map[string]uint64, error) { return nil, errNotByNFT }
func (p standardPlane) IfIndex(a nodestate.Addr) int        { return a.IfIndex }
func (p standardPlane) Programs([]string) (*ebpf.Rehearsal, error) {
	return nil, errNotByNFT
}
func (p standardPlane) Prove(*ebpf.Rehearsal, string, int, bool) (ebpf.Proof, error) {
	return ebpf.Proof{}, errNotByNFT
}

// Events begins to read events.
func (p standardPlane) Events() (events.Source, error) { return p.Driver.Events() }

// Places are those of the node in the words of eBPF's.
func (p standardPlane) Places() ebpf.Places {
	at, err := p.Driver.Places()
	if err != nil && at.Behind == "" {
		at.Behind = err.Error()
	}
	return ebpf.Places{Uplinks: at.Uplinks, Tunnel: at.Tunnel, Host: at.Host, Epoch: at.Epoch, Behind: at.Behind}
}

// Fallen are clients that fell back from direct server return.
func (p standardPlane) Fallen() (ebpf.Fallen, error) {
	clients, total, err := p.Driver.Fallen()
	return ebpf.Fallen{Clients: clients, Total: total}, err
}

// Drops counts what policy dropped, and nothing else.
func (p standardPlane) Drops() ([]ebpf.Drop, error) {
	drops, err := p.Driver.Drops()
	out := make([]ebpf.Drop, 0, len(drops))
	for _, d := range drops {
		out = append(out, ebpf.Drop{Reason: uint32(d.Reason), Rule: d.Rule, Packets: d.Packets, Bytes: d.Bytes})
	}
	return out, err
}

// Status says what there is in the words of eBPF's.
func (p standardPlane) Status() ebpf.Status {
	st := p.Driver.Status()
	return ebpf.Status{Endpoints: st.Endpoints, Tunnel: st.Tunnel, Writes: st.Writes, Problems: st.Problems, Entries: st.Elements,
		Repairs: st.Repairs, Repaired: st.Repaired}
}

// planeChoice remembers which data plane the node has, and whether the other one's remains may still be there.
type planeChoice struct {
	Standard bool `json:"standard"`
	Other    bool `json:"other"`
	Known    bool `json:"known"`
}

// planes chooses the node's data plane at the agent's start.
type planes struct {
	file    remembered[planeChoice]
	log     *slog.Logger
	choice  planeChoice
	unsaved bool  // the file does not say what choice says
	lacks   error // what of the kernel stands against eBPF
	bpffs   string
}

func openPlanes(stateDir, bpffs string, log *slog.Logger) *planes {
	p := &planes{file: remembered[planeChoice]{path: filepath.Join(stateDir, "dataplane.json"), log: log}, log: log, bpffs: bpffs}
	p.choice = p.file.load()
	return p
}

// choose decides between eBPF and standard Linux: as was in force before, at the first start as the environment says, and
// without eBPF where the kernel cannot carry it.
func (p *planes) choose(e config.Effective, lacks error) (standard bool) {
	p.lacks = lacks
	want := p.choice.Standard
	if !p.choice.Known {
		want = e.Standard
	}
	if lacks != nil && !want {
		want = true
		p.log.Error("this kernel cannot carry the eBPF data plane; the one of standard Linux takes its place", "error", lacks)
	}
	if err := p.note(want); err != nil {
		p.log.Error("remembering which data plane the node has; trying again, and what the other one left stays until then", "error", err)
	}
	return want
}

// note remembers a choice, before anything is done about it. Where none was known, or another one, the other data plane may have
// left something.
func (p *planes) note(standard bool) error {
	if p.choice.Known && p.choice.Standard == standard {
		return nil
	}
	p.choice = planeChoice{Standard: standard, Other: true, Known: true}
	return p.save()
}

// save writes the choice where the next start finds it.
func (p *planes) save() error {
	err := p.file.save(p.choice)
	p.unsaved = err != nil
	return err
}

// changed reports whether another data plane is asked for than the one in force.
func (p *planes) changed(e config.Effective) bool {
	return e.Standard != p.choice.Standard && (e.Standard || p.lacks == nil)
}

// problem is what weir status says of a node that has not the data plane that it is asked to have.
func (p *planes) problem(node string, e config.Effective) []weirv1.Problem {
	if p.lacks == nil || e.Standard {
		return nil
	}
	return []weirv1.Problem{{Object: "Node " + node, Field: "bpfEnabled", Message: "this kernel cannot carry the eBPF data plane, the one of standard Linux is in force: " + p.lacks.Error(),
		Action: "use a newer kernel, or set bpfEnabled: false for this node"}}
}

// takeOver says what eBPF takes over of connection tracking at this start: what our tables translated where they are, else what a kube-proxy
// did where its rules are. What cannot be told counts as there, but judges nothing.
func (p *planes) takeOver(tables, rules func() (bool, error)) ebpf.TakeOver {
	if !p.choice.Other {
		return ebpf.TakeNothing
	}
	ours, err := tables()
	if err != nil {
		p.log.Warn("cannot tell whether the data plane of standard Linux was in force; of its connections those that were translated are taken over", "error", err)
	}
	switch {
	case err != nil: // nobody may be there to judge what programs pass
		return ebpf.TakeTranslated
	case ours:
		return ebpf.TakeAll
	}
	theirs, err := rules()
	if err != nil {
		p.log.Warn("cannot tell whether a kube-proxy balanced connections; they are taken over as if one did", "error", err)
	}
	if theirs || err != nil {
		return ebpf.TakeTranslated
	}
	return ebpf.TakeNothing
}

// openStandard opens the data plane of standard Linux.
func (a *Agent) openStandard() error {
	before := func() {
		if !a.planes.choice.Other {
			return
		}
		if err := ebpf.Foretell(a.planes.bpffs, a.log.With("part", "ebpf")); err != nil {
			a.log.Error("some connections of the node's own processes may be lost", "error", err)
		}
	}
	d, err := nft.New(nft.Options{Logger: a.log.With("part", "nft"), Before: before, StateDir: a.opts.StateDir})
	if err != nil {
		return fmt.Errorf("opening the nftables data plane: %w", err)
	}
	a.driver = standardPlane{d}
	a.log.Info("the data plane is that of standard Linux (nftables)")
	return nil
}

// keepPlane removes what the other data plane left, once this one is in place, and ends the agent when the other one is
// asked for: it starts again with that.
func (a *Agent) keepPlane(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	kept := time.NewTicker(time.Minute)
	defer kept.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-kept.C:
			if err := conntrack.Unkeep(true); err != nil {
				a.log.Debug("a table that may do nothing any more stays", "error", err)
			}
			continue
		case <-tick.C:
		}
		if a.loop.Applied() == 0 || !a.watcher.Status().Synced {
			continue
		}
		if a.planes.unsaved && a.planes.save() != nil {
			// The next start would take the other data plane for the one in force, and not look for what this one leaves.
			time.Sleep(5 * time.Second)
			continue
		}
		if a.planes.choice.Other && a.loop.Err() == nil {
			if err := a.removeOther(ctx); err != nil {
				a.log.Error("removing what the other data plane left; trying again", "error", err)
				time.Sleep(5 * time.Second)
				continue
			}
		}
		if e := a.cluster.snapshot().config.Effective; a.planes.changed(e) {
			a.log.Info("another data plane is asked for; the agent starts again with it", "standard Linux", e.Standard)
			a.noteChanging(e.Standard)
			a.report(ctx)
			if err := a.planes.note(e.Standard); err != nil {
				return err
			}
			return ErrAgain
		}
	}
}

// reportWithin is how long a change of the data plane waits for its report.
const reportWithin = time.Second

// report writes the NodeStatus at once: when the data plane is about to change, after which the agent does not answer for a
// while, and when it has changed.
func (a *Agent) report(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	if err := a.publishNow(ctx, true); err != nil {
		a.log.Warn("the change of the data plane could not be reported; it goes on", "error", err)
	}
}

// noteChanging says from now on that a data plane is about to carry packets.
func (a *Agent) noteChanging(standard bool) {
	to := planeEBPF
	if standard {
		to = planeStandard
	}
	a.changing.Store(&to)
}

// giveWay hands the connections of the eBPF data plane over to this one.
func (a *Agent) giveWay(ctx context.Context) {
	if err := ebpf.GiveWay(ctx, a.planes.bpffs, a.driver.(standardPlane), a.log.With("part", "ebpf")); err != nil {
		a.log.Error("some open connections of the data plane before are lost", "error", err)
	}
}

// removeOther removes what the other data plane left; of eBPF's, once its connections are handed over.
func (a *Agent) removeOther(ctx context.Context) error {
	var err error
	if a.planes.choice.Standard {
		a.giveWay(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // the next start does it
		}
		if err := conntrack.Unkeep(false); err != nil { // this one's own tables do that
			a.log.Warn("a table that does nothing stays", "error", err)
		}
		err = ebpf.Remove(a.planes.bpffs)
	} else {
		if err = nft.Remove(ctx); err == nil {
			if err := nft.Restore(a.opts.StateDir); err != nil {
				a.log.Error("some settings of the kernel are not what they were before nftables", "error", err)
			}
		}
	}
	if err != nil {
		return err
	}
	a.planes.choice.Other = false
	a.log.Info("removed what the other data plane left")
	err = a.planes.save()
	a.changing.Store(nil)
	a.report(ctx)
	return err
}
