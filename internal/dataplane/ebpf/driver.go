// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/namereader"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
	"github.com/weir-net/weir/internal/dataplane/shape"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Options say where a driver works.
type Options struct {
	Logger *slog.Logger
	// BPFFS is the folder below which maps and links are pinned, "/sys/fs/bpf/weir" on a node.
	// Empty pins nothing: all is gone when the driver is closed.
	BPFFS string
	// BPFFSMount is where a BPF file system is mounted if BPFFS is not on one; empty = it must be.
	BPFFSMount string
	// Cgroup is the folder of the unified hierarchy whose sockets are balanced; empty = none are.
	Cgroup string
	// Sizes are the maps' entries by name ("weir_flows"); 0 or absent = as compiled.
	Sizes map[string]uint32
	// FlowRecords is after how long an open flow is reported by its next packet; 0 = flows are not
	// accounted for, and packets pay nothing.
	FlowRecords time.Duration
	// Gateways: pods may leave the cluster by egress gateways. Without, the kernel takes out of the
	// programs what would have them do so.
	Gateways bool
	// Departures: pods are held to their bandwidth by departure times, where the kernel can.
	Departures bool
	// Trace makes programs leave their decisions in skb->cb, for tests.
	Trace bool
	// SetRetval says that the kernel has bpf_set_retval for socket-address programs (kernel.Probe).
	SetRetval bool
	// NoTCX says that the kernel has no tcx links: interfaces get clsact filters.
	NoTCX bool
	// Import says which connections are imported that another data plane tracks, which is in force
	// until the first Apply. Left returns what the data plane before knows alongside what
	// connection tracking does; nil = nothing.
	Left   func() (conntrack.Left, error)
	Import flowhandover.ImportScope
	// AttachAtOnce is to how many places of interfaces an Apply attaches programs while connections
	// of our other data plane are imported, which is in force meanwhile; 0 = attachAtOnce.
	AttachAtOnce int
	// InBackground loads the programs in the background where those of an earlier run evaluate
	// packets by the same maps: see loading. An Apply writes tables alone until then, and returns
	// dataplane.Waiting.
	InBackground bool
	// Preloaded is what Preload returned; nil = nothing. New and the first Apply take of it what is
	// as these options say.
	Preloaded *object.Preloaded
	// BeforeLoad is called before programs are loaded in the background, for tests; nil = nothing
	// is.
	BeforeLoad func()
}

func (o Options) constants() object.Constants {
	c := object.Constants{Trace: o.Trace, SetRetval: o.SetRetval, Gateways: o.Gateways, Departures: o.Departures && hasDepartures()}
	if hz, err := kernel.HZ(); err == nil && o.FlowRecords > 0 { // New fails where there is none
		c.AccountInterval = tables.Clock{HZ: hz}.Units(o.FlowRecords)
	}
	return c
}

// Gateways reports whether the programs lead pods out by egress gateways.
func (d *Driver) Gateways() bool { return d.opts.Gateways }

// Driver is the eBPF data plane. It works in the network namespace of the process.
type Driver struct {
	opts Options
	log  *slog.Logger

	mu           sync.Mutex
	loaded       *object.Collection          // of IPv4; its programs are the ones attached
	six          *object.Collection          // of IPv6; nil = the node does not carry it
	called       *object.Collection          // the six that IPv4's programs call
	slow         map[*object.Collection]bool // whose programs call their SlowProgram
	unpacks      bool                        // IPv4's call what unpacks IP in IP
	readsNames   bool                        // they call what reads answers of DNS servers
	nameReader   *namereader.Reader          // of what that cannot read; nil = there was none yet
	sixErr       error                       // why the state's wish about IPv6 is not fulfilled
	removingIPv6 bool                        // something of IPv6 is still there that should go
	narrow       map[string]bool             // our devices whose MTU is too small for IPv6
	tables       *tables.Node
	programs     *attach.Attachments
	siteList     *siteList // where they belong, as found last; nil = look again
	attachedAt   attachedAt
	untracked    untracked
	limits       limits
	machine      tables.Machine
	state        *nodestate.State // nil before the first Apply
	devices      devices
	uplinks      map[int]string // by interface index, as found last
	forwarding   map[int]string // pods' interfaces that forwardPods has looked at, likewise
	pattern      *regexp.Regexp // that found them
	absent       map[attach.Site]string
	started      bool // the first Apply is over: what earlier runs left is dealt with
	carried      bool // what programs of an earlier run made is taken over
	importing    *handoverImport
	importDone   bool // connections of another data plane are imported
	bump         bool // something alongside the tables changed that flows depend on
	count        repairCounts
	problems     []string
	attached     time.Time  // when an interface got its programs last
	wished       deviceWish // what our devices were made for last
	needsTunnel  bool       // the state that was applied last sends something through the tunnel
	exhausted    map[netip.Addr]exhaustedNote
	pins         map[string]uint64  // inodes of pinned maps, by path, that are ours
	handingOver  bool               // Leave was called
	reading      sync.Mutex         // of records
	records      *eventring.Records // nil = nobody has read any
	expired      expired            // records of flows that nobody met again
	// names is the state, for records, while its policy has domain names; else nil.
	names   atomic.Pointer[nodestate.State]
	loading *loading // programs are being loaded; nil = they are
	endRun  func()   // ends Run
}

var (
	_ dataplane.Driver   = (*Driver)(nil)
	_ dataplane.Reporter = (*Driver)(nil)
)

// New loads the programs and takes over what an earlier run left pinned. Nothing is attached, and
// no map is written, before the first Apply: until then the programs of the earlier run go on. With
// InBackground ours may be loaded when New has returned: see Loaded.
func New(o Options) (*Driver, error) {
	if o.Cgroup != "" {
		if err := kernel.CheckCgroupV2(o.Cgroup); err != nil {
			return nil, err
		}
	}
	maps, links := "", ""
	if o.BPFFS != "" {
		if err := object.PrepareDirs(o.BPFFSMount, o.BPFFS); err != nil {
			return nil, err
		}
		maps, links = bpffs.MapsDir(o.BPFFS), bpffs.LinksDir(o.BPFFS)
		if err := object.RecoverMaps(o.BPFFS, o.Logger); err != nil {
			o.Logger.Warn("pins were lost, and maps that are still in use are not taken over: open connections may end", "error", err)
		}
	}
	hz, err := kernel.HZ()
	if err != nil {
		return nil, err
	}
	cookie, err := kernel.NetnsCookie()
	if err != nil {
		return nil, err
	}
	l, err := o.Preloaded.Take(nil, maps, o.Sizes, o.constants())
	preloaded := l != nil
	if err == nil && !preloaded {
		l, err = object.OpenMaps(nil, maps, o.Sizes, o.constants(), o.Logger)
	}
	if err != nil {
		return nil, err
	}
	var by attach.Attacher = attach.BpfLinks{Cgroup: o.Cgroup}
	if o.NoTCX {
		by = attach.WithoutTCX{BpfLinks: attach.BpfLinks{Cgroup: o.Cgroup}}
	}
	d := &Driver{
		opts: o, log: o.Logger, loaded: l, tables: tables.New(l), programs: attach.NewAttachments(by, links, o.Logger),
		machine: tables.Machine{Clock: tables.Clock{HZ: hz}, HostNetns: cookie, Flows: int(l.Maps["weir_flows"].MaxEntries()), HandOver: o.Import == flowhandover.ImportAll},
		endRun:  func() {}, absent: map[attach.Site]string{}, narrow: map[string]bool{}, devices: devices{fresh: map[string]bool{}}, limits: limits{queues: shape.New(shape.Pair), wake: make(chan struct{}, 1)},
	}
	if o.constants().Departures {
		d.limits.queues.Depart()
	}
	if !preloaded && d.findEvaluating() {
		d.beginLoading()
		return d, nil
	}
	if !preloaded {
		programs, err := l.Verify()
		if err != nil {
			l.Close()
			return nil, err
		}
		l.Install(programs)
	}
	if err := d.programs.Offer("", l.Programs); err != nil {
		l.Close()
		return nil, err
	}
	return d, nil
}

// Apply implements dataplane.Driver.
func (d *Driver) Apply(_ context.Context, s *nodestate.State, changed nodestate.Keys) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if changed.Has(nodestate.TableAddrs) || changed.Has(nodestate.TableQoS) {
		d.siteList = nil
	}
	first := d.state == nil
	if first || changed.Has(nodestate.TableSettings) || changed.Has(nodestate.TableAddrs) || changed.Has(nodestate.TableRoutes) {
		d.needsTunnel = s.NeedsTunnel()
	}
	if first {
		d.loaded.CarryOver(d.opts.BPFFS, true, d.log)
		if err := d.tables.Load(); err != nil {
			return err
		}
		// Where programs of a run before begin flows, they evaluate: what another data plane has
		// left may be old.
		d.machine.HandOver = d.machine.HandOver && !d.tables.Begins()
		d.machine.Marks = d.tables.Marks()
		// What is there of our devices was made by the earlier run, and is looked at when programs
		// can be attached.
		d.machine.Host, d.machine.Tunnel = d.tables.Devices()
	}
	if d.loading != nil && !d.loading.over() {
		return d.applyEarly(s, changed, first)
	}
	if d.handingOver {
		d.tables.Desire(s, changed, d.ifindex)
		d.state = s
		return d.keepTables()
	}
	if d.loading != nil {
		if err := d.endLoading(); err != nil {
			return err
		}
		changed = nodestate.All()
	}
	if came := d.ensureIPv6(s, first); came || first {
		changed = nodestate.All()
		d.warnTables(s)
		d.bump = d.bump || d.tables.Changing()
	}
	if err := d.ensureUplinks(s); err != nil {
		return err
	}
	d.tables.Desire(s, changed, d.ifindex)
	d.state = s
	return d.reconcile(!d.wished.equal(d.wish(s)) || len(d.problems) > 0)
}

// ifindex returns the interface of an endpoint.
func (d *Driver) ifindex(a nodestate.Addr) int {
	if a.IfIndex != 0 || a.Interface == "" {
		return a.IfIndex
	}
	l, err := netlink.LinkByName(a.Interface)
	if err != nil {
		d.log.Warn("an endpoint's interface is not there", "interface", a.Interface, "endpoint", a.Owner.String(), "error", err)
		return 0
	}
	return l.Attrs().Index
}

// reconcile makes the kernel equal to what is desired: devices (down), tables, programs, devices
// (up), routes, deletes, and last the epoch. Devices are looked at only when asked to: a pod's
// start does not touch them, and check looks at them all the time.
func (d *Driver) reconcile(devices bool) error {
	before := d.tables.Reevaluated()
	var errs []error
	if devices {
		errs = d.prepareDevices()
	}
	d.tables.Write(d.state, d.machine)
	if err := errors.Join(d.callSlow(), d.sixErr, d.callIPv6()); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(d.callIPIP(), d.callNames()); err != nil {
		errs = append(errs, err)
	}
	if err := d.ensureUntracked(); err != nil {
		errs = append(errs, &dataplane.KeyError{Table: "programs", Key: "doNotTrack", Err: err})
	}
	errs = append(errs, d.ensureLimits()...)
	errs = append(errs, d.forwardPods()...)
	d.beginImport()
	attachErrs := d.attachAll(devices)
	unfinished := slices.Contains(attachErrs, dataplane.ErrUnfinished)
	if d.endImport(!unfinished && (len(attachErrs) == 0 || d.carries())) {
		unfinished = true
		attachErrs = append(attachErrs, dataplane.ErrUnfinished)
	}
	errs = append(errs, attachErrs...)
	if len(attachErrs) == 0 {
		d.endCarryOver()
		if !d.machine.Marks { // those of an older version were attached until now
			d.machine.Marks = true
			if err := d.tables.ChangeFlags(abi.SetMarks, 0); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if devices && !unfinished {
		errs = append(errs, d.openDevices()...)
		d.wished = d.wish(d.state)
	}
	d.tables.Remove(d.state, d.machine)
	if err := d.removeUntracked(); err != nil {
		errs = append(errs, &dataplane.KeyError{Table: "programs", Key: "doNotTrack", Err: err})
	}
	errs = append(errs, d.removeLimits()...)
	errs = append(errs, d.endTables(before)...)
	if !d.started && len(errs) == 0 {
		d.started = true
		d.opts.Preloaded.Close() // what is left of it
		d.log.Info("the node's state is in the kernel", "maps found", d.loaded.Found, "links found", d.programs.Reused, "entries written", d.tables.Written(),
			"epoch", d.tables.Epoch(), "programs attached", len(d.programs.At))
	}
	d.note(errs)
	return errors.Join(errs...)
}

// endCarryOver takes over, once, what the old programs made until they were replaced by ours, and
// lets go of the maps that they had.
func (d *Driver) endCarryOver() {
	if d.carried {
		return
	}
	d.carried = true
	for _, l := range d.both() {
		l.CarryOver(d.opts.BPFFS, false, d.log)
	}
	if d.opts.BPFFS == "" || d.sixErr != nil { // what is of IPv6 there waits for a start that can load it
		return
	}
	for _, l := range d.both() {
		if err := l.UnpinOtherSlow(bpffs.FamilyDir(d.opts.BPFFS, l.Family)); err != nil {
			d.log.Warn("programs that nothing calls any more are left behind", "error", err)
		}
	}
	if err := object.RemoveOldLayouts(d.opts.BPFFS); err != nil {
		d.log.Warn("old maps are left behind", "error", err)
	}
}

// note keeps what is wrong for Status.
func (d *Driver) note(errs []error) {
	d.problems = d.problems[:0]
	for _, err := range errs {
		if errors.Is(err, dataplane.ErrUnfinished) {
			continue
		}
		if len(d.problems) == 20 {
			d.problems = append(d.problems, fmt.Sprintf("and %d more", len(errs)-20))
			break
		}
		d.problems = append(d.problems, err.Error())
	}
}

// Close lets go of programs, maps and links. What is pinned goes on working.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := errors.Join(d.programs.Close(), d.closeRecords())
	d.dropImport()
	d.opts.Preloaded.Close()
	families := d.both()
	free := func() {
		for _, l := range families {
			l.Close()
		}
	}
	if p := d.loading; p != nil { // the verifier cannot be stopped
		d.loading = nil
		go func() {
			p.drop()
			free()
		}()
		return err
	}
	free()
	d.untracked.close()
	d.limits.close()
	return err
}

// endTables lets flows evaluate themselves again where entries were written since there were before
// of them, and returns what could not be written.
func (d *Driver) endTables(before uint64) []error {
	if d.tables.Reevaluated() != before || d.tables.Stale() {
		d.bump = true
	}
	err := d.raiseEpoch()
	if err == nil && d.tables.RemoveVerdicts() {
		d.bump = true
		err = d.raiseEpoch()
	}
	errs := d.tables.Errors()
	if err != nil {
		errs = append(errs, err)
	}
	return errs
}

// raiseEpoch makes flows evaluate themselves again when something changed that they depend on.
func (d *Driver) raiseEpoch() error {
	if !d.bump {
		return d.tables.Settle()
	}
	if err := d.tables.NextEpoch(); err != nil {
		return err
	}
	d.bump = false
	return nil
}
