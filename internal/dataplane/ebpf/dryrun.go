// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/dryrun"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/nodestate"
)

// Programs loads the programs of some hooks ("weir_from_workload") a second time, while the driver
// goes on with its work. Close it soon: it holds kernel memory, about that of the programs.
func (d *Driver) Programs(programs []string) (*dryrun.Instance, error) {
	r := &dryrun.Instance{}
	err := d.shareMaps(r)
	if err == nil {
		err = r.Load(programs, d.opts.constants())
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("loading the programs a second time: %w", err)
	}
	return r, nil
}

// shareMaps gives a dry run the live maps.
func (d *Driver) shareMaps(r *dryrun.Instance) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return errors.New("no state of the node was applied yet")
	}
	if d.loading != nil {
		return errors.New("the programs are being loaded; ask again in some seconds")
	}
	six := d.six
	if d.called != d.six {
		six = nil
	}
	return r.Share(d.loaded, six)
}

// Proof compares a program of a dry run with the one that is loaded for the node's packets.
type Proof struct {
	Program  string // "weir_from_workload"
	Tag      string // of the instance that was run: the kernel's digest of its instructions
	Live     string // of the one that is attached, or called by it
	ID       uint32 // the kernel's number of that
	Attached string // why it is not in effect at the interface; empty = it is
}

// Same reports whether the instance is the very program that the node's packets meet.
func (p Proof) Same() bool { return p.Tag != "" && p.Tag == p.Live && p.Attached == "" }

// Prove compares the program that was run for a packet at an interface with the one that is
// attached there.
func (d *Driver) Prove(r *dryrun.Instance, program string, ifindex int, six bool) (Proof, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := Proof{Program: program}
	ours, carried := r.Program(program, six)
	live := d.loaded
	if six {
		live = d.six
	}
	if !carried || live == nil {
		return p, fmt.Errorf("the node does not carry the family of the packet")
	}
	for _, x := range []struct {
		of  *ebpf.Program
		tag *string
	}{{ours, &p.Tag}, {d.live(live, program), &p.Live}} {
		if x.of == nil {
			return p, fmt.Errorf("the node has no program %s", program)
		}
		info, err := x.of.Info()
		if err != nil {
			return p, fmt.Errorf("reading about program %s: %w", program, err)
		}
		*x.tag = info.Tag
		if id, ok := info.ID(); ok {
			p.ID = uint32(id)
		}
	}
	p.Attached = d.notAttached(program, ifindex)
	return p, nil
}

// live is a program that the node's packets meet.
func (d *Driver) live(l *object.Collection, program string) *ebpf.Program {
	for _, g := range []*object.Untracked{d.untracked.four, d.untracked.six} {
		if program == object.EachProgram && g != nil && g.Of == l {
			return g.Each
		}
	}
	return l.Programs[program]
}

// notAttached says why a program is not in effect at an interface.
func (d *Driver) notAttached(program string, ifindex int) string {
	name := program
	if program == object.EachProgram {
		name = "weir_" + attach.ToUplink.Name
	}
	for s, at := range d.programs.At {
		if s.Ifindex == ifindex && "weir_"+s.Hook.Name == name {
			if err := at.Check(s, d.programs.ID(s)); err != nil {
				return err.Error()
			}
			return ""
		}
	}
	return fmt.Sprintf("no program %s is attached to interface %d", program, ifindex)
}

// Places returns the interfaces by which packets come that are not a pod's.
func (d *Driver) Places() dataplane.Places {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := dataplane.Places{Uplinks: map[int][6]byte{}, Epoch: d.tables.Epoch()}
	for index := range d.uplinks {
		p.Uplinks[index] = d.machine.Uplinks[uint32(index)].Mac
	}
	if d.devices.tunnel != nil {
		p.Tunnel = d.devices.tunnel.Index
	}
	if d.devices.host != nil {
		p.Host = d.devices.host.Index
	}
	if len(d.problems) > 0 {
		p.Behind = d.problems[0]
	}
	return p
}

// IfIndex returns the interface of an endpoint, 0 when it is not there.
func (d *Driver) IfIndex(a nodestate.Addr) int { return d.ifindex(a) }
