// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// DryRun is a second instance of a node's programs that is attached to nothing. What says how
// the node should be (policy, classes, addresses, routes, services, settings) it reads in the very
// maps of the programs that are attached; what packets leave behind (flows, affinity, counts, and
// whatever map is not known here) it has in small maps of its own. Nothing that it does changes how
// the node treats a packet. It is not safe for concurrent use.
type DryRun struct {
	Programs map[string]*ebpf.Program // of IPv4, by name; with Trace
	Hop6     *ebpf.Map                // weir_trace of IPv6; nil without it
	four     *ebpf.Collection
	six      *ebpf.Collection
	live     [2]map[string]*ebpf.Map // clones of liveMaps and copiedMaps, of IPv4 and IPv6
}

// liveMaps are the maps of desired state that a dry run shares with the node. Its programs only
// read them: a test loads them with maps that the kernel lets no program write. A map that is not
// listed is a private one, empty.
var liveMaps = []string{
	"weir_settings", "weir_addrs", "weir_routes", "weir_services", "weir_ranges", "weir_backends", "weir_maglev", "weir_live",
	"weir_peers", "weir_peer_cidrs", "weir_policy", "weir_hosts", "weir_hosts_staged", "weir_staged", "weir_clients", "weir_links", "weir_dsr_optout", "weir_announced", "weir_uplinks", "weir_ports",
}

// copiedMaps are those of which a dry run may copy single entries into its own.
var copiedMaps = []string{"weir_flows", "weir_flows_new", "weir_shares"}

// dryRunEntries bounds the private maps, which one packet at a time fills.
const dryRunEntries = 1024

// NewDryRun loads the programs of some hooks ("weir_from_workload") a second time, while the driver
// goes on with its work. Close it soon: it holds kernel memory, about that of the programs.
func (d *Driver) NewDryRun(programs []string) (*DryRun, error) {
	r := &DryRun{}
	err := d.shareMaps(r)
	if err == nil {
		err = r.load(programs, d.opts.constants())
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("loading the programs a second time: %w", err)
	}
	return r, nil
}

// shareMaps gives a dry run the live maps.
func (d *Driver) shareMaps(r *DryRun) error {
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
	return r.cloneMaps(d.loaded, six)
}

// cloneMaps clones the live maps of the families that the node carries; six may be nil.
func (r *DryRun) cloneMaps(four, six *loaded) error {
	for i, l := range []*loaded{four, six} {
		if l == nil {
			continue
		}
		r.live[i] = map[string]*ebpf.Map{}
		for _, name := range slices.Concat(liveMaps, copiedMaps) {
			m := l.Maps[name]
			if m == nil {
				return fmt.Errorf("the node has no map %s", name)
			}
			clone, err := m.Clone()
			if err != nil {
				return err
			}
			r.live[i][name] = clone
		}
	}
	return nil
}

// load loads the programs of the families whose maps were taken.
func (r *DryRun) load(programs []string, c constants) (err error) {
	c.trace = true
	if r.four, err = loadDryRunFamily(abi.LoadWeir, r.live[0], nil, programs, c); err != nil {
		return err
	}
	r.Programs = r.four.Programs
	if r.live[1] == nil {
		return nil
	}
	if r.six, err = loadDryRunFamily(abi.LoadWeir6, r.live[1], r.four, programs, c); err != nil {
		return err
	}
	r.Hop6 = r.six.Maps["weir_trace"]
	for i, name := range append(slices.Clone(ipv6Slots), eachProgram) {
		if p := r.six.Programs[name]; p != nil {
			if err = r.four.Maps[programsOfIPv6].Put(uint32(i), p); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadDryRunFamily loads one family's programs. The maps that both families share are those of
// first, where it is given.
func loadDryRunFamily(read func() (*ebpf.CollectionSpec, error), live map[string]*ebpf.Map, first *ebpf.Collection, programs []string, c constants) (*ebpf.Collection, error) {
	spec, err := read()
	if err != nil {
		return nil, err
	}
	if err := specialize(spec, nil, c); err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(programs, name) })
	if len(spec.Programs) != len(programs) {
		return nil, fmt.Errorf("there are not all of the programs %q", programs)
	}
	replaced := map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		from := live
		switch {
		case slices.Contains(liveMaps, name):
			ms.MaxEntries = from[name].MaxEntries()
		case first != nil && slices.Contains(shared, name):
			from = first.Maps
			ms.MaxEntries = from[name].MaxEntries()
		default:
			shrink(ms)
			continue
		}
		replaced[name] = from[name]
	}
	if first != nil {
		delete(spec.Maps, programsOfIPv6)
		delete(replaced, programsOfIPv6)
	}
	return ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced})
}

// shrink makes a private map small, where its size is not part of what the programs do with it.
func shrink(ms *ebpf.MapSpec) {
	switch ms.Type {
	case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		ms.MaxEntries = min(ms.MaxEntries, dryRunEntries)
	case ebpf.RingBuf:
		ms.MaxEntries = min(ms.MaxEntries, 1<<16) // a power of two and of whole pages
	case ebpf.Array:
		if ms.Name == "weir_frag_slots" {
			ms.MaxEntries = 1 // for fragments, of which no dry run has any
		}
	}
}

// Close unloads it.
func (r *DryRun) Close() {
	for _, c := range []*ebpf.Collection{r.four, r.six} {
		if c != nil {
			c.Close()
		}
	}
	for _, maps := range r.live {
		for _, m := range maps {
			m.Close()
		}
	}
}

// FlowKey is by what the programs know a flow in one direction. Ports are as in
// docs/design/datapath.md, step 0.
type FlowKey struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Proto            model.Protocol
}

// Reversed is the key of what comes back, where nothing is translated.
func (k FlowKey) Reversed() FlowKey { return FlowKey{k.Dst, k.Src, k.DstPort, k.SrcPort, k.Proto} }

// bytes is struct flow_key.
func (k FlowKey) bytes() []byte {
	out := append(k.Src.AsSlice(), k.Dst.AsSlice()...)
	out = binary.BigEndian.AppendUint16(out, k.SrcPort)
	out = binary.BigEndian.AppendUint16(out, k.DstPort)
	return append(out, uint8(k.Proto), 0, 0, 0)
}

// CopyFlow copies what the node remembers of a flow into the dry run, and reports whether there was
// something, and whether it is established.
func (r *DryRun) CopyFlow(k FlowKey) (found, established bool, err error) {
	for _, name := range []string{"weir_flows", "weir_flows_new"} {
		there, err := r.copyEntry(name, k.bytes(), k.Src.Is6())
		if err != nil {
			return false, false, fmt.Errorf("copying the flow: %w", err)
		}
		found, established = found || there, established || there && name == "weir_flows"
	}
	return found, established, nil
}

// CopyShare copies how much of the connection table a pod has, and how much is in use.
func (r *DryRun) CopyShare(pod netip.Addr) error {
	pod = pod.Unmap()
	for _, key := range [][]byte{pod.AsSlice(), make([]byte, pod.BitLen()/8)} {
		if _, err := r.copyEntry("weir_shares", key, pod.Is6()); err != nil {
			return fmt.Errorf("copying the share of %s: %w", pod, err)
		}
	}
	return nil
}

// copyEntry copies an entry of one of copiedMaps, and reports whether there is one.
func (r *DryRun) copyEntry(name string, key []byte, six bool) (bool, error) {
	family, to := 0, r.four
	if six {
		family, to = 1, r.six
	}
	if to == nil || r.live[family] == nil {
		return false, nil
	}
	value, err := r.live[family][name].LookupBytes(key)
	if err != nil {
		return false, fmt.Errorf("looking into map %s: %w", name, err)
	}
	if value == nil {
		return false, nil
	}
	if err := to.Maps[name].Put(key, value); err != nil {
		return false, fmt.Errorf("writing map %s: %w", name, err)
	}
	return true, nil
}

// Forget empties the dry run's own tables of flows and affinity, so that the next packet begins as
// the first did.
func (r *DryRun) Forget() error {
	var errs []error
	for _, c := range []*ebpf.Collection{r.four, r.six} {
		if c == nil {
			continue
		}
		for _, name := range []string{"weir_flows", "weir_flows_new", "weir_affinity"} {
			errs = append(errs, clearMap(c.Maps[name]))
		}
	}
	return errors.Join(errs...)
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
func (d *Driver) Prove(r *DryRun, program string, ifindex int, six bool) (Proof, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := Proof{Program: program}
	ours, live := r.four, d.loaded
	if six {
		ours, live = r.six, d.six
	}
	if ours == nil || live == nil {
		return p, fmt.Errorf("the node does not carry the family of the packet")
	}
	for _, x := range []struct {
		of  *ebpf.Program
		tag *string
	}{{ours.Programs[program], &p.Tag}, {d.live(live, program), &p.Live}} {
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
func (d *Driver) live(l *loaded, program string) *ebpf.Program {
	for _, g := range []*untrackedPrograms{d.untracked.four, d.untracked.six} {
		if program == eachProgram && g != nil && g.of == l {
			return g.each
		}
	}
	return l.Programs[program]
}

// notAttached says why a program is not in effect at an interface.
func (d *Driver) notAttached(program string, ifindex int) string {
	name := program
	if program == eachProgram {
		name = "weir_" + attach.ToUplink.Name
	}
	for s, at := range d.programs.At {
		if s.Ifindex == ifindex && "weir_"+s.Hook.Name == name {
			if err := at.Check(s, d.programs.Ids[s.Hook.Name]); err != nil {
				return err.Error()
			}
			return ""
		}
	}
	return fmt.Sprintf("no program %s is attached to interface %d", program, ifindex)
}

// Places are the interfaces by which packets come that are not a pod's.
type Places struct {
	Uplinks      map[int][6]byte // by index, with their MAC addresses
	Tunnel, Host int             // 0 = there is none
	Epoch        uint32
	Behind       string // what of the state is not in the kernel; empty = all is
}

// Places returns them.
func (d *Driver) Places() Places {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := Places{Uplinks: map[int][6]byte{}, Epoch: d.tables.epoch()}
	for index := range d.uplinks {
		p.Uplinks[index] = d.machine.uplinks[uint32(index)].Mac
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

// NewDryRun is Driver.NewDryRun for programs that are attached to nothing themselves.
func (o *Offline) NewDryRun(programs []string) (*DryRun, error) {
	six := o.six
	if o.state == nil || !o.state.Settings.IPv6 {
		six = nil
	}
	r := &DryRun{}
	err := r.cloneMaps(o.loaded, six)
	if err == nil {
		err = r.load(programs, constants{setRetval: true})
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}
