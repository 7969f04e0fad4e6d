// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/handover"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
)

// ErrRestart says that the agent is to be started again at once.
var ErrRestart = errors.New("to be started again")

// openNFTables opens the data plane nftables.
func (a *Agent) openNFTables() (dataPlane, error) {
	before := func() {
		if !a.planes.choice.Other {
			return
		}
		if err := flowhandover.ExportEarly(a.planes.bpffs, a.log.With("part", "ebpf")); err != nil {
			a.log.Error("some connections of the node's own processes may be lost", "error", err)
		}
	}
	d, err := nft.New(nft.Options{Logger: a.log.With("part", "nft"), Before: before, StateDir: a.opts.StateDir, FlowRecords: a.atStart().FlowRecords, Beside: a.before.Beside()})
	if err != nil {
		return nil, fmt.Errorf("opening the nftables data plane: %w", err)
	}
	a.log.Info("the data plane is nftables")
	return nftablesPlane{d}, nil
}

// retryRemoval is between two tries to remove what the other data plane left.
const retryRemoval = 5 * time.Second

// reconcilePlane removes what the other data plane left, once this one is in place, and puts the
// other one in the place of this one when it is asked for. Then the agent starts again with that.
func (a *Agent) reconcilePlane(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	kept := time.NewTicker(time.Minute)
	defer kept.Stop()
	if err := a.awaitPrograms(ctx); err != nil {
		return err
	}
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
		if a.loop.Applied() == 0 || !a.source.Status().Synced {
			continue
		}
		if a.planes.unsaved && a.planes.save() != nil {
			// The next start would take the other data plane for the one in force, and not look for
			// what this one leaves.
			_ = sleep.For(ctx, retryRemoval)
			continue
		}
		if a.planes.choice.Other && a.loop.Err() == nil {
			if err := a.removeOther(ctx); err != nil {
				a.log.Error("removing what the other data plane left; trying again", "error", err)
				_ = sleep.For(ctx, retryRemoval)
				continue
			}
		}
		if e := a.cluster.snapshot().config.Effective; a.planes.changed(e) {
			if err := a.switchPlane(ctx, e); err != nil {
				return err
			}
		} else if a.otherPrograms(e) {
			a.log.Info("the programs are to lead pods out by egress gateways, or no longer; the agent starts again, no connection is lost", "egressIPSupport", e.Settings.Egress != model.EgressDisabled)
			return ErrRestart
		}
	}
}

// otherPrograms reports whether the programs lead pods out by egress gateways and are not to, or
// are to and do not, and a start of the agent would load others.
func (a *Agent) otherPrograms(e config.Effective) bool {
	loaded, is := a.driver.(ebpfPlane)
	now, atStart := e.Settings.Egress != model.EgressDisabled, a.atStart().Settings.Egress != model.EgressDisabled
	return is && now != loaded.Gateways() && now == atStart
}

// awaitPrograms waits for what the kernel says of the programs, while states are applied. Where its
// verifier refuses them after an agent of another version had its own attached, the agent starts
// again with the data plane nftables.
func (a *Agent) awaitPrograms(ctx context.Context) error {
	if a.programs == nil {
		return nil
	}
	err := a.programs(ctx)
	if ctx.Err() != nil || !errors.Is(err, ebpf.ErrRefused) {
		return err
	}
	before := a.planes.choice.NFTables
	switch nftables := a.planes.choose(a.cluster.snapshot().config.Effective, err); {
	case nftables == before:
		return nil
	case a.planes.unsaved:
		return err // the next start would try the same
	}
	return ErrRestart
}

// tryPrograms looks once the node's state is in place whether the kernel takes the programs.
func (a *Agent) tryPrograms(ctx context.Context) error {
	return a.tryWith(ctx, ebpf.TryWithPauses)
}

func (a *Agent) tryWith(ctx context.Context, try func(context.Context, *slog.Logger) error) error {
	for a.loop.Applied() == 0 && ctx.Err() == nil {
		_ = sleep.For(ctx, 200*time.Millisecond)
	}
	if a.cluster.snapshot().config.Effective.NFTables {
		// What the start knew was older. To verify the programs takes several times the processor
		// time of a change of the data plane, and openSwitch does it where eBPF is asked for again.
		return nil
	}
	tried := make(chan error, 1)
	go func() { tried <- try(ctx, a.log) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-tried:
		if err != nil && !errors.Is(err, ebpf.ErrRefused) {
			a.log.Warn("it is not known whether this kernel takes the eBPF programs", "error", err)
			return nil
		}
		return err
	}
}

// switchPlane puts another data plane in the place of the one in force, which goes on applying
// changes until then. The error is ErrRestart when the agent is to start again with it: also where
// the change was broken off, and is for the next start to finish.
func (a *Agent) switchPlane(ctx context.Context, e config.Effective) error {
	a.log.Info("another data plane is asked for", "nftables", e.NFTables)
	a.noteChanging(e.NFTables)
	a.reportSwitch(ctx)
	if err := a.planes.note(e.NFTables); err != nil {
		return err
	}
	if proxied, err := kubeproxy.RulesThere(); proxied || err != nil {
		// The other one starts with the question who carries Services.
		a.log.Info("a kube-proxy's rules are here: the agent starts again with the other data plane", "error", err)
		return ErrRestart
	}
	change, err := a.openSwitch(e)
	if errors.Is(err, ebpf.ErrRefused) {
		a.planes.choose(e, err)
		a.changing.Store(nil)
		return nil
	}
	if err != nil {
		return err
	}
	began := time.Now()
	changing, stop := context.WithCancel(ctx)
	defer stop()
	go a.stopWhenUnwanted(changing, e.NFTables, stop)
	if to, ok := change.To.(nftablesPlane); ok {
		a.announceNoIPIP(changing, to)
	}
	if err = change.Run(changing); err != nil {
		a.log.Error("the change of the data plane goes on with the next start", "error", err)
		return ErrRestart
	}
	a.planes.choice.Other = false
	if err := a.planes.save(); err != nil {
		a.log.Error("remembering that the data plane has changed; the next start looks for what the other one left", "error", err)
	}
	a.log.Info("the data plane has changed; the agent starts again with it", "nftables", e.NFTables, "took", time.Since(began).Round(time.Millisecond))
	return ErrRestart
}

// stopWhenUnwanted stops a change when the data plane that it leads to is asked for no more.
func (a *Agent) stopWhenUnwanted(ctx context.Context, nftables bool, stop context.CancelFunc) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for a.cluster.snapshot().config.Effective.NFTables == nftables {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	stop()
}

// openSwitch opens the other data plane and says how it takes the place of this one.
func (a *Agent) openSwitch(e config.Effective) (c handover.Change, err error) {
	c = handover.Change{Loop: a.loop, From: a.driver, Remove: a.removeNFTables}
	if !e.NFTables {
		to, err := a.openEBPF(e)
		c.To = to
		return c, err
	}
	to, err := a.openNFTables()
	if err != nil {
		return c, err
	}
	c.To, c.Remove = to, a.removeEBPF
	c.HandOver = func(ctx context.Context) error {
		err := a.driver.(ebpfPlane).ExportFlows(ctx, to.(nftablesPlane))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			a.log.Error("some open connections of the data plane before are lost", "error", err)
		}
		return nil
	}
	return c, nil
}

// reportTimeout is how long a change of the data plane waits for its report.
const reportTimeout = time.Second

// reportSwitch writes the NodeStatus at once: when the data plane is about to change, after which
// the agent does not answer for a while, and when it has changed.
func (a *Agent) reportSwitch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if err := a.publishNow(ctx, true); err != nil {
		a.log.Warn("the change of the data plane could not be reported; it goes on", "error", err)
	}
}

// noteChanging says from now on that a data plane is about to carry packets.
func (a *Agent) noteChanging(nftables bool) {
	to := planeEBPF
	if nftables {
		to = planeNFTables
	}
	a.changing.Store(&to)
}

// handOverFromEBPF hands the connections of the eBPF data plane over to this one.
func (a *Agent) handOverFromEBPF(ctx context.Context) {
	if err := flowhandover.ExportFlows(ctx, a.planes.bpffs, a.driver.(nftablesPlane), a.log.With("part", "ebpf")); err != nil {
		a.log.Error("some open connections of the data plane before are lost", "error", err)
	}
}

// removeOther removes what the other data plane left; of eBPF's, once its connections are handed
// over.
func (a *Agent) removeOther(ctx context.Context) error {
	remove := a.removeNFTables
	if a.planes.choice.NFTables {
		a.handOverFromEBPF(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // the next start does it
		}
		remove = a.removeEBPF
	}
	if err := remove(ctx); err != nil {
		return err
	}
	a.planes.choice.Other = false
	a.log.Info("removed what the other data plane left")
	err := a.planes.save()
	a.changing.Store(nil)
	a.reportSwitch(ctx)
	return err
}

// removeEBPF removes what is left of the eBPF data plane.
func (a *Agent) removeEBPF(context.Context) error {
	if err := conntrack.Unkeep(false); err != nil { // those of nftables do that
		a.log.Warn("a table that does nothing stays", "error", err)
	}
	return ebpf.Remove(a.planes.bpffs)
}

// removeNFTables removes what is left of the data plane nftables.
func (a *Agent) removeNFTables(ctx context.Context) error {
	if err := nft.Remove(ctx); err != nil {
		return err
	}
	if err := nft.Restore(a.opts.StateDir); err != nil {
		a.log.Error("some settings of the kernel are not what they were before nftables", "error", err)
	}
	return nil
}
