// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/nodestate"
)

// The kernel's verifier takes seconds for the programs of both families. Where programs of an
// earlier run evaluate packets by the maps that this run has opened, states are written to these at
// once: a change of policy, of Services or of endpoints does not wait for the programs. Devices,
// routes and what is attached stay as they are until then. Programs of another version with the
// same layout number know these tables: that is what the number says.

// loading are programs that are being loaded in the background.
type loading struct {
	began  time.Time
	missed bool          // a state was not written
	done   chan struct{} // closed when the fields below are set

	err, err6 error // why IPv4's, and why IPv6's programs are not loaded
	four, six *ebpf.Collection
	untracked []*object.Untracked // of doNotTrack, by family as in Driver.both; none = not asked for, or not loaded
}

// over reports whether the programs are loaded, or cannot be.
func (p *loading) over() bool {
	select {
	case <-p.done:
		return p.err == nil
	default:
		return false
	}
}

// drop waits for the programs and forgets them.
func (p *loading) drop() {
	<-p.done
	for _, c := range []*ebpf.Collection{p.four, p.six} {
		if c != nil {
			c.Close()
		}
	}
	for _, g := range p.untracked {
		g.Close()
	}
}

// beginLoading loads the programs of the maps that are open.
func (d *Driver) beginLoading() {
	p := &loading{began: time.Now(), done: make(chan struct{})}
	d.loading = p
	families, alone := d.both(), d.loaded.FlagsFound()&abi.SetUntracked != 0
	go func() {
		defer close(p.done)
		if d.opts.BeforeLoad != nil {
			d.opts.BeforeLoad()
		}
		if p.four, p.err = families[0].Verify(); p.err != nil {
			return
		}
		if len(families) > 1 {
			p.six, p.err6 = families[1].Verify()
		}
		for i, l := range families {
			if !alone || i > 0 && p.err6 != nil {
				break
			}
			g, err := object.LoadUntracked(l)
			if err != nil {
				break // the Apply that needs them says why
			}
			p.untracked = append(p.untracked, g)
		}
	}()
}

// Loaded returns once the programs are in the kernel, or why they cannot be: ErrRefused where its
// verifier does not take them. Programs of an earlier run go on then, by tables that are kept up to
// date.
func (d *Driver) Loaded(ctx context.Context) error {
	d.mu.Lock()
	p := d.loading
	d.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		return p.err
	}
}

// endLoading makes the programs that were loaded in the background those to attach.
func (d *Driver) endLoading() error {
	p := d.loading
	if err := d.programs.Offer("", p.four.Programs); err != nil {
		return err
	}
	d.loading = nil
	d.loaded.Install(p.four)
	if p.six != nil {
		d.six.Install(p.six)
		p.err6 = d.programs.Offer(attach.Ipv6Prefix, d.six.Programs)
	}
	if p.err6 != nil { // ensureIPv6 tries again
		d.tables.RemoveIPv6()
		d.six.Close()
		d.six = nil
	} else if d.six != nil {
		d.log.Info("the node carries IPv6", "maps found", d.six.Found)
	}
	for i, g := range p.untracked {
		switch {
		case i == 0:
			d.useUntracked(g)
		case g.Of == d.six:
			d.untracked.six = g
		default:
			g.Close()
		}
	}
	d.log.Info("the programs are loaded; policy and Services were kept up to date meanwhile", "took", time.Since(p.began).Round(time.Millisecond))
	return nil
}

// applyEarly writes what it can of a state while the programs of an earlier run evaluate packets.
func (d *Driver) applyEarly(s *nodestate.State, changed nodestate.Keys, first bool) error {
	waiting := &dataplane.Waiting{For: "the programs to be loaded", Until: d.loading.done}
	select {
	case <-d.loading.done: // in vain: whoever waits for Loaded decides
		waiting.For, waiting.Until = "another data plane: "+d.loading.err.Error(), nil
	default:
	}
	if s.Settings.IPv6 != (d.six != nil) { // programs come or go with it
		d.loading.missed = true
		return waiting
	}
	if first || d.loading.missed {
		d.loading.missed = false
		changed = nodestate.All()
		d.warnTables(s)
		d.bump = d.bump || d.tables.Changing()
	}
	if err := d.ensureUplinks(s); err != nil {
		return errors.Join(err, waiting)
	}
	d.tables.Desire(s, changed, d.ifindex)
	d.state = s
	err := d.keepTables()
	if first {
		d.log.Info("the node's policy and Services are in the kernel, and its programs are being loaded", "maps found", d.loaded.Found,
			"entries written", d.tables.Written(), "epoch", d.tables.Epoch())
	}
	return errors.Join(err, waiting)
}

// findEvaluating reports whether programs of an earlier run evaluate packets by the maps that are
// open, and no others do: all maps were there, with the size that they are to have, and are those
// of the programs that are attached. It opens the maps of IPv6 where that run carried it.
func (d *Driver) findEvaluating() bool {
	if !d.opts.InBackground || d.opts.BPFFS == "" || d.opts.Import != flowhandover.ImportNone || !d.loaded.FoundAll() {
		return false
	}
	if others, err := object.OldLayouts(d.opts.BPFFS); err != nil || len(others) > 0 {
		return false
	}
	if d.loaded.FlagsFound()&(abi.SetHandOver|abi.SetApart) != 0 || !d.loaded.StateFound() {
		return false
	}
	var six *object.Collection
	if _, err := os.Stat(filepath.Join(bpffs.Maps6Dir(d.opts.BPFFS), "weir_settings")); err == nil {
		six, err = object.OpenMaps(d.loaded, bpffs.Maps6Dir(d.opts.BPFFS), d.opts.Sizes, d.opts.constants(), d.log)
		if err != nil {
			return false // the first Apply says why
		}
		if !six.FoundAll() {
			six.Close()
			return false
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err := d.loaded.CheckAttached(six, d.opts.BPFFS, d.opts.NoTCX); err != nil {
		d.log.Info("policy is applied when the programs are loaded", "reason", err)
		if six != nil {
			six.Close()
		}
		return false
	}
	if six != nil {
		d.six = six
		d.tables.Add(d.tables.FamilyOf(six))
	}
	return true
}
