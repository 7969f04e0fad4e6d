// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/model"
)

// Instance is a second instance of a node's programs that is attached to nothing. What says how
// the node should be (policy, classes, addresses, routes, services, settings) it reads in the very
// maps of the programs that are attached; what packets leave behind (flows, affinity, counts, and
// whatever map is not known here) it has in small maps of its own. Nothing that it does changes how
// the node treats a packet. It is not safe for concurrent use.
type Instance struct {
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
	"weir_peers", "weir_peer_cidrs", "weir_policy", "weir_hosts", "weir_hosts_staged", "weir_staged", "weir_clients", "weir_links", "weir_dsr_optout", "weir_announced", "weir_uplinks", "weir_ports", "weir_sources", "weir_floating", "weir_gateways", "weir_egress_policies", "weir_egress_rules", "weir_name_sets", "weir_name_pods", "weir_name_patterns", "weir_name_servers",
}

// copiedMaps are those of which a dry run may copy single entries into its own.
var copiedMaps = []string{"weir_flows", "weir_flows_new", "weir_shares", "weir_names"}

// dryRunEntries bounds the private maps, which one packet at a time fills.
const dryRunEntries = 1024

// Share gives the instance the live maps of the families that the node carries; six may be nil. The
// error is that of a map that is missing, or cannot be opened once more: the instance is to be
// closed then, too.
func (r *Instance) Share(four, six *object.Collection) error {
	for i, l := range []*object.Collection{four, six} {
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

// fromIPIP is what the program of uplinks calls for IP in IP, which is IPv4's alone. That the node
// takes IP in IP is with its settings.
const fromIPIP = "weir_from_ipip"

// Load loads the programs of some hooks ("weir_from_workload"), of the families whose maps were
// shared, with Trace. The error is the kernel's.
func (r *Instance) Load(programs []string, c object.Constants) (err error) {
	c.Trace = true
	programs = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(programs), object.SlowProgram))))
	if r.four, err = loadDryRunFamily(abi.LoadWeir, r.live[0], nil, programs, c); err != nil {
		return err
	}
	r.Programs = r.four.Programs
	if p := r.four.Programs[fromIPIP]; p != nil {
		if err = r.four.Maps[object.ProgramOfIPIP].Put(uint32(0), p); err != nil {
			return err
		}
	}
	if r.live[1] == nil {
		return nil
	}
	ofBoth := slices.DeleteFunc(slices.Clone(programs), func(name string) bool { return name == fromIPIP })
	if r.six, err = loadDryRunFamily(abi.LoadWeir6, r.live[1], r.four, ofBoth, c); err != nil {
		return err
	}
	r.Hop6 = r.six.Maps["weir_trace"]
	for i, name := range append(slices.Clone(object.IPv6Slots), object.EachProgram) {
		if p := r.six.Programs[name]; p != nil {
			if err = r.four.Maps[object.ProgramsOfIPv6].Put(uint32(i), p); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadDryRunFamily loads one family's programs. The maps that both families share are those of
// first, where it is given.
func loadDryRunFamily(read func() (*ebpf.CollectionSpec, error), live map[string]*ebpf.Map, first *ebpf.Collection, programs []string, c object.Constants) (*ebpf.Collection, error) {
	spec, err := read()
	if err != nil {
		return nil, err
	}
	if err := object.Specialize(spec, nil, c); err != nil {
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
		case first != nil && object.IsShared(name):
			from = first.Maps
			ms.MaxEntries = from[name].MaxEntries()
		default:
			shrink(ms)
			continue
		}
		replaced[name] = from[name]
	}
	if first != nil {
		delete(spec.Maps, object.ProgramsOfIPv6)
		delete(replaced, object.ProgramsOfIPv6)
	}
	out, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced})
	if err != nil {
		return nil, err
	}
	if err := out.Maps[object.CallsOfSlow].Put(uint32(0), out.Programs[object.SlowProgram]); err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
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

// Program returns a program of the instance; carried is false where it has none of the family, and
// p nil where it was loaded without this one.
func (r *Instance) Program(name string, six bool) (p *ebpf.Program, carried bool) {
	ours := r.four
	if six {
		ours = r.six
	}
	if ours == nil {
		return nil, false
	}
	return ours.Programs[name], true
}

// Close unloads it.
func (r *Instance) Close() {
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
func (r *Instance) CopyFlow(k FlowKey) (found, established bool, err error) {
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
func (r *Instance) CopyShare(pod netip.Addr) error {
	pod = pod.Unmap()
	for _, key := range [][]byte{pod.AsSlice(), make([]byte, pod.BitLen()/8)} {
		if _, err := r.copyEntry("weir_shares", key, pod.Is6()); err != nil {
			return fmt.Errorf("copying the share of %s: %w", pod, err)
		}
	}
	return nil
}

// CopyNamed copies which domain names led the pod at an interface to an address.
func (r *Instance) CopyNamed(ifindex int, a netip.Addr) error {
	wide := a.As16()
	key := append(binary.NativeEndian.AppendUint32(nil, uint32(ifindex)), wide[:]...)
	if _, err := r.copyEntry("weir_names", key, a.Is6()); err != nil {
		return fmt.Errorf("copying the names of %s: %w", a, err)
	}
	return nil
}

// copyEntry copies an entry of one of copiedMaps, and reports whether there is one.
func (r *Instance) copyEntry(name string, key []byte, six bool) (bool, error) {
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
func (r *Instance) Forget() error {
	var errs []error
	for _, c := range []*ebpf.Collection{r.four, r.six} {
		if c == nil {
			continue
		}
		for _, name := range []string{"weir_flows", "weir_flows_new", "weir_affinity"} {
			errs = append(errs, maptable.Clear(c.Maps[name]))
		}
	}
	return errors.Join(errs...)
}
