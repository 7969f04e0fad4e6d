// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
)

// sizeSettings names the FelixConfiguration field that sets the size of a map.
var sizeSettings = map[string]string{
	"weir_addrs":      "bpfMapSizeRoute",
	"weir_routes":     "bpfMapSizeRoute",
	"weir_services":   "bpfMapSizeNATFrontend",
	"weir_backends":   "bpfMapSizeNATBackend",
	"weir_live":       "bpfMapSizeNATBackend",
	"weir_affinity":   "bpfMapSizeNATAffinity",
	"weir_peers":      "bpfMapSizeIPSets",
	"weir_peer_cidrs": "bpfMapSizeIPSets",
	"weir_flows":      "bpfMapSizeConntrack",
	"weir_flows_new":  "bpfMapSizeConntrack",
	"weir_events":     "bpfExportBufferSizeMB",
}

// SizeSetting returns the FelixConfiguration field that sets the size of a map; empty = none does.
func SizeSetting(name string) string { return sizeSettings[name] }

// headroom are maps that take, while they change, what was and what will be, and by how much more
// they are made than their setting says. Entries that are not there take no memory.
var headroom = map[string]uint32{"weir_peer_cidrs": 2}

// Room is how many entries a map may hold as its setting says.
func Room(name string, m *ebpf.Map) int { return int(m.MaxEntries() / max(headroom[name], 1)) }

// stateful are the maps whose contents only traffic makes: they keep the size that they have rather
// than lose what they know.
var stateful = map[string]bool{
	"weir_flows": true, "weir_flows_new": true, "weir_affinity": true, "weir_sockets": true, "weir_drops": true,
	"weir_answers": true, "weir_frags": true, "weir_frag_slots": true, "weir_frag_rings": true,
	"weir_dsr_tries": true, "weir_dsr_fallen": true, "weir_counts": true, "weir_shares": true, "weir_resolves": true, "weir_spent": true, "weir_streams": true, LimitStates: true, Conns: true,
	"weir_names": true, "weir_name_used": true, "weir_name_asked": true, "weir_name_counts": true, "weir_name_streams": true, "weir_name_said": true,
}

// IsStateful reports whether only traffic makes what a map holds.
func IsStateful(name string) bool { return stateful[name] }

// shared maps are the same for both families: what they hold has no addresses, or, of domain names,
// those of both.
var shared = []string{"weir_policy", "weir_ports", "weir_drops", "weir_answers", "weir_events", "weir_event_rate", "weir_records", "weir_hosts", "weir_hosts_staged", "weir_trace_rule",
	"weir_name_patterns", "weir_name_sets", "weir_name_pods", "weir_name_servers", "weir_names", "weir_name_used", "weir_name_asked", "weir_name_counts", "weir_name_calls", "weir_name_streams", "weir_name_reader", "weir_name_handed", "weir_name_waits", "weir_name_said",
	Queues, Limits, LimitStates, LimitedOfIPv6, Conns, Departures}

// ProgramsOfIPv6 is the map by which the programs of IPv4, which are the ones attached, call those
// of IPv6.
const ProgramsOfIPv6 = "weir_ipv6"

// IPv6Slots are the programs in ProgramsOfIPv6 by their index, enum hook.
var IPv6Slots = []string{"weir_from_workload", "weir_to_workload", "weir_from_uplink", "weir_to_uplink", "weir_from_tunnel"}

// CallIPv6 makes the programs of IPv4 call those of six, nil = none, and returns how many of these
// calls were others.
func (l *Collection) CallIPv6(six *Collection) (int, error) {
	changed := 0
	for i, name := range IPv6Slots {
		var p *ebpf.Program
		if six != nil {
			p = six.Programs[name]
		}
		other, err := setCall(l.Maps[ProgramsOfIPv6], uint32(i), name+" for IPv6", p)
		if err != nil {
			return changed, err
		}
		if other {
			changed++
		}
	}
	return changed, nil
}

// unpinned maps hold nothing from one packet to the next, or, as the rings, nothing that
// outlives its reader: weir_name_reader is the agent's that loaded the program which it is for. An
// agent does not take over another's CallsOfSlow either, whose pin has another name.
var unpinned = map[string]bool{"weir_events": true, "weir_records": true, "weir_event_rate": true, "weir_trace": true, "weir_trace_rule": true, "weir_scratch": true, "weir_reply": true, "weir_frag_saved": true, "weir_name_work": true, "weir_name_reader": true, "weir_name_handed": true, "weir_name_waits": true, "weir_conn_work": true, CallsOfSlow: true, ".rodata": true, ".bss": true, ".data": true}

// IsUnpinned reports whether a map has no pin.
func IsUnpinned(name string) bool { return unpinned[name] }

// Collection is what is in the kernel of one family: its maps and, once they are loaded, its
// programs, not attached yet.
type Collection struct {
	*ebpf.Collection
	Found     int             // how many maps were there before
	recreated map[string]bool // maps that were there with another layout or size, and are empty now
	Family    string          // bpffs.IPv4 or bpffs.IPv6
	ICMP      uint8           // the protocol number that is ICMP
	Swept     map[string]int  // entries of tables that programs fill, at the last sweep; the driver guards and sets it
	read      func() (*ebpf.CollectionSpec, error)
	constants Constants
	spec      *ebpf.CollectionSpec // of programs that are not loaded yet; nil = they are
	pinned    int                  // maps that are pinned by this family
}

// Constants are the load-time constants of the programs.
type Constants struct {
	Trace     bool // programs leave their decisions in skb->cb
	SetRetval bool // the kernel has bpf_set_retval for socket-address programs
	// Unlimited lets every event through, whatever the rate.
	Unlimited bool
	// EventInterval is the time between two events of a CPU in the long run; 0 = as compiled.
	EventInterval time.Duration
	// Answers are how many packets a CPU may answer by itself in a second, and Burst how many at
	// once; 0 = as compiled.
	Answers, Burst uint32
	// Gateways: pods may leave the cluster by egress gateways.
	Gateways bool
	// Departures: pods are held to their bandwidth by departure times.
	Departures bool
	// AccountInterval is after how long an open flow is reported by its next packet, units of the
	// programs' clock; 0 = flows are not accounted for.
	AccountInterval uint32
}

// Load puts the programs and maps into the kernel: see OpenMaps and Verify, also for the errors.
func Load(four *Collection, dir string, sizes map[string]uint32, c Constants, log *slog.Logger) (*Collection, error) {
	l, err := OpenMaps(four, dir, sizes, c, log)
	if err != nil {
		return nil, err
	}
	programs, err := l.Verify()
	if err != nil {
		l.Close()
		return nil, err
	}
	l.Install(programs)
	return l, nil
}

// OpenMaps makes the maps. With a folder on bpffs, maps pinned there are taken over, and the others
// are pinned there.
//
// The maps of IPv6 are opened alongside those of IPv4, given as four, some of which both families
// share.
func OpenMaps(four *Collection, dir string, sizes map[string]uint32, c Constants, log *slog.Logger) (_ *Collection, err error) {
	l := &Collection{recreated: map[string]bool{}, Family: bpffs.IPv4, ICMP: unix.IPPROTO_ICMP}
	l.read, l.constants = abi.LoadWeir, c
	if four != nil {
		l.read = abi.LoadWeir6
		l.Family, l.ICMP = bpffs.IPv6, unix.IPPROTO_ICMPV6
	}
	spec, err := l.read()
	if err != nil {
		return nil, fmt.Errorf("reading the compiled programs: %w", err)
	}
	if err := Specialize(spec, sizes, c); err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return slices.Contains(untrackedNames, name) || slices.Contains(limitedNames, name)
	})
	if err := rlimit.RemoveMemlock(); err != nil {
		log.Debug("could not lift the limit on locked memory; needed before Linux 5.11 only", "error", err)
	}
	l.Collection, l.spec = &ebpf.Collection{Maps: map[string]*ebpf.Map{}}, spec
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if four != nil {
		delete(spec.Maps, ProgramsOfIPv6)
		delete(spec.Maps, UntrackedOfIPv6)
		for _, name := range shared {
			if l.Maps[name], err = four.Maps[name].Clone(); err != nil {
				return nil, fmt.Errorf("sharing map %s: %w", name, err)
			}
		}
	}
	for name, ms := range spec.Maps {
		if strings.HasPrefix(name, ".") || l.Maps[name] != nil {
			continue // data of programs comes with them
		}
		var m *ebpf.Map
		if dir == "" || unpinned[name] {
			if m, err = ebpf.NewMap(ms); err != nil {
				return nil, fmt.Errorf("making map %s of %d entries: %w", name, ms.MaxEntries, err)
			}
		} else if m, err = l.openMap(filepath.Join(dir, name), ms, log); err != nil {
			return nil, err
		} else {
			l.pinned++
		}
		l.Maps[name] = m
	}
	if m := l.Maps[CallsOfSlow]; dir != "" {
		if err := bpffs.PinOver(m, filepath.Join(dir, pinName(CallsOfSlow, m))); err != nil {
			return nil, fmt.Errorf("pinning map %s: %w", CallsOfSlow, err)
		}
	}
	return l, nil
}

// Verify loads the programs, which takes the kernel's verifier seconds, and changes nothing of l:
// all but NamesProgram, which CallNames loads. The error is ErrRefused where it does not take them.
func (l *Collection) Verify() (*ebpf.Collection, error) {
	return l.verify(func(name string) bool { return name != NamesProgram })
}

// VerifyOnly is Verify of some programs, or of none.
func (l *Collection) VerifyOnly(names ...string) (*ebpf.Collection, error) {
	return l.verify(func(name string) bool { return slices.Contains(names, name) })
}

func (l *Collection) verify(wanted func(name string) bool) (*ebpf.Collection, error) {
	spec := *l.spec
	spec.Programs = maps.Clone(spec.Programs)
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !wanted(name) })
	c, err := ebpf.NewCollectionWithOptions(&spec, ebpf.CollectionOptions{MapReplacements: l.Maps})
	if err != nil {
		return nil, refused(fmt.Errorf("loading the programs: %w", err))
	}
	return c, nil
}

// TryEach loads the programs one at a time and forgets each at once; then it calls pause with what
// that took, whose error ends it. The kernel's verifier has the processor for a program at most.
func (l *Collection) TryEach(pause func(took time.Duration) error) error {
	for _, name := range slices.Sorted(maps.Keys(l.spec.Programs)) {
		one := *l.spec
		one.Programs = map[string]*ebpf.ProgramSpec{name: l.spec.Programs[name]}
		began := time.Now()
		c, err := ebpf.NewCollectionWithOptions(&one, ebpf.CollectionOptions{MapReplacements: l.Maps})
		if err != nil {
			return refused(fmt.Errorf("loading the programs: %w", err))
		}
		c.Close()
		if err := pause(time.Since(began)); err != nil {
			return err
		}
	}
	return nil
}

// Install makes programs that Verify loaded those of l.
func (l *Collection) Install(c *ebpf.Collection) {
	for name, m := range c.Maps {
		if l.Maps[name] != nil {
			m.Close() // a clone
			continue
		}
		l.Maps[name] = m
	}
	l.Programs, l.Variables, l.spec = c.Programs, c.Variables, nil
}

// ErrRefused is of programs that the kernel's verifier does not take: another data plane has to
// take their place.
var ErrRefused = errors.New("this kernel's verifier does not take the programs")

// refused sets what the verifier said apart from what else stood against loading.
func refused(err error) error {
	if v := (*ebpf.VerifierError)(nil); errors.As(err, &v) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// Specialize sets sizes and constants.
func Specialize(spec *ebpf.CollectionSpec, sizes map[string]uint32, c Constants) error {
	for name, n := range sizes {
		ms, ok := spec.Maps[name]
		if !ok {
			return fmt.Errorf("size given for map %s, which does not exist", name)
		}
		if n > 0 {
			ms.MaxEntries = n * max(headroom[name], 1)
		}
	}
	for name, on := range map[string]bool{"trace_enabled": c.Trace, "can_set_retval": c.SetRetval, "egress_enabled": c.Gateways, "departures_enabled": c.Departures} {
		v, ok := spec.Variables[name]
		if !ok {
			return fmt.Errorf("the programs have no constant %s", name)
		}
		var value uint8
		if on {
			value = 1
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("setting the programs' constant %s: %w", name, err)
		}
	}
	if c.Departures {
		if err := forgetTimes(spec); err != nil {
			return err
		}
	}
	if c.Unlimited || c.EventInterval > 0 {
		if err := spec.Variables["event_interval_ns"].Set(uint64(c.EventInterval)); err != nil {
			return fmt.Errorf("setting the rate of events: %w", err)
		}
	}
	if c.AccountInterval > 0 {
		if err := spec.Variables["account_interval"].Set(c.AccountInterval); err != nil {
			return fmt.Errorf("setting the interval of flow records: %w", err)
		}
	} else if err := withoutRecords(spec); err != nil {
		return err
	}
	if c.Answers == 0 {
		return nil
	}
	interval := uint64(time.Second) / uint64(c.Answers)
	return errors.Join(spec.Variables["reply_interval_ns"].Set(interval), spec.Variables["reply_burst"].Set(c.Burst))
}
