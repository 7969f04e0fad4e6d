// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
)

// importRetry is how long nothing is imported after programs could be attached nowhere.
const importRetry = 10 * time.Second

// handoverImport is the import of tracked connections from another data plane, while programs
// are being attached. It imports them before. Of our own data plane what has no flow passes the
// programs until all of them are attached, and what began meanwhile was imported; and what both
// translate and the stack sees is kept apart (conntrack.TranslatedZone). Alongside a kube-proxy,
// whose tables evaluate nothing, packets of no known connection are held back instead. The ingress
// paths are attached first: when what comes out of them meets the programs of the egress paths, no
// packet is translated by both.
type handoverImport struct {
	table    *conntrack.Table
	zone     *conntrack.TranslatedZone
	importer flowhandover.Importer
	release  func() error                   // nil = nothing is held back
	done     map[conntrack.Tuple]importedAs // by the tuple of the original direction
	// translated are those imported that connection tracking would go on translating.
	translated   []conntrack.Entry
	loosen       []conntrack.Tuple
	inStack      map[conntrack.Tuple]conntrack.Entry // those that connection tracking goes on translating
	flows        int
	step         int  // of beginFlows
	attached     bool // all programs are attached: what the node sends of what they know is theirs to translate
	begun        bool // programs begin flows again: what they have is right
	readAt, held time.Time
}

// importedAs is what a connection was when it was imported: another one may have its addresses
// and ports now.
type importedAs struct {
	answers conntrack.Tuple
	phase   int
}

// phaseOf is how far a connection is: a later one with its addresses and ports begins anew.
func phaseOf(e conntrack.Entry) int {
	switch {
	case e.Orig.Proto != unix.IPPROTO_TCP:
		return 0
	case e.TCP.State == conntrack.TCPSynSent || e.TCP.State == conntrack.TCPSynRecv:
		return 1
	case e.TCP.State == conntrack.TCPLastAck || e.TCP.State == conntrack.TCPTimeWait || e.TCP.State == conntrack.TCPClose:
		return 3
	}
	return 2
}

// beginImport does what comes before programs are attached. A failure loses connections, and is no
// reason not to go on. Packets are held back once: where programs could be attached nowhere, the
// next tries do without, and look seldom for what is to be imported.
func (d *Driver) beginImport() {
	if d.opts.Import == flowhandover.ImportNone || d.importDone {
		return
	}
	if o := d.importing; o != nil {
		o.importer.State = d.state
		if time.Since(o.readAt) >= importRetry && !d.carries() {
			clear(o.done)
			o.translated, o.flows = nil, 0
			if err := d.endMarks(o); err != nil { // no program translates yet: it would grow with each try
				d.log.Warn("taking over connections from another data plane", "error", err)
			}
			d.importTracked(o)
		}
		return
	}
	table, err := conntrack.Open()
	if err != nil {
		d.importDone, d.machine.HandOver = true, false
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	o := &handoverImport{table: table, zone: conntrack.NewTranslatedZone(table, flowhandover.Marks), importer: flowhandover.Importer{State: d.state, Ifindex: d.ifindex, Which: d.opts.Import, Route: kernelRoute}, done: map[conntrack.Tuple]importedAs{},
		inStack: map[conntrack.Tuple]conntrack.Entry{}}
	d.importTracked(o)
	o.held = time.Now()
	if d.opts.Import == flowhandover.ImportAll {
		d.importing = o
		return
	}
	d.hold(o)
	d.importTracked(o)
	d.importing = o
}

// hold holds packets back, from now on for as long as they can be.
func (d *Driver) hold(o *handoverImport) {
	set := d.state.Settings
	if set.InterfacePrefix == "" {
		return
	}
	var err error
	o.release, err = conntrack.Hold(context.Background(), conntrack.HoldOptions{InterfacePrefix: set.InterfacePrefix, TunnelPort: set.Tunnel.Port})
	if err != nil {
		d.log.Info("connections that begin while the data plane changes may be lost", "error", err)
	}
}

// carries reports whether an ingress path has its program: single interfaces that have none do not
// keep the others' packets from it.
func (d *Driver) carries() bool {
	for s := range d.programs.At {
		if s.Hook == attach.FromWorkload || s.Hook == attach.FromUplink {
			return true
		}
	}
	return false
}

// importTracked imports what was not yet.
func (d *Driver) importTracked(o *handoverImport) {
	clock, err := flowtable.NewKernelClock()
	if err != nil {
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	defer clock.Close()
	o.readAt = time.Now()
	now, err := clock.Now()
	errs := []error{err}
	if d.opts.Import == flowhandover.ImportAll {
		errs = append(errs, d.beginMarks(o))
	}
	if d.opts.Import == flowhandover.ImportAll && d.opts.Left != nil {
		var err error
		o.importer.Predecessor, err = d.opts.Left()
		errs = append(errs, err, flowtable.Learn(d.loaded.Maps["weir_names"], o.importer.Predecessor.Told))
	}
	for i, f := range d.tables.Families() {
		errs = append(errs, o.importFamily(f, d.both()[i].Family == bpffs.IPv6, now))
	}
	if d.opts.Import == flowhandover.ImportAll {
		var some conntrack.Some
		for _, of := range o.loosen { // packets of one direction may come by programs, and those of the other not
			some.Add(o.table.Loosen(of))
		}
		errs = append(errs, some.Err())
	}
	o.loosen = nil
	if err := errors.Join(errs...); err != nil {
		d.log.Warn("some connections that another data plane translated are lost", "error", err)
	}
}

// beginMarks lets programs mark what they translate and the stack sees, once the table is there
// that respects it.
func (d *Driver) beginMarks(o *handoverImport) error {
	if err := o.zone.Open(context.Background()); err != nil {
		return err
	}
	d.machine.Apart = true
	return d.tables.ChangeFlags(abi.SetApart, 0)
}

// endMarks ends what beginMarks began, and leads nothing any more.
func (d *Driver) endMarks(o *handoverImport) error {
	d.machine.Apart = false
	err := d.tables.ChangeFlags(0, abi.SetApart)
	conntrack.AwaitPackets() // what bears a mark still is unmarked by the table
	return errors.Join(err, o.zone.Close())
}

// importFamily imports what was not yet of a family. As soon as programs know a connection they
// translate it: what the stack sees of one is kept apart before. What could not be is tried again
// each time, though programs have it.
func (o *handoverImport) importFamily(f tables.ImportTables, six bool, now uint32) error {
	var some conntrack.Some
	for _, e := range o.importer.Predecessor.Untracked {
		if e.Orig.Src.Is6() == six {
			some.Add(o.importOne(f, e, now))
		}
	}
	var seen, apart []conntrack.Entry
	err := o.table.Each(six, func(e conntrack.Entry) {
		if e.Zone != 0 {
			return
		}
		e = o.importer.BeforeOthersNAT(e)
		if o.importer.InStack(e) {
			some.Add(o.importInStack(f, e, now))
			return
		}
		if shadow, ok := o.importer.Shadow(e); ok && o.importer.Which == flowhandover.ImportAll && o.importer.Ours(e) && !(o.has(f, e) && o.zone.Leads(shadow.Orig)) {
			seen, apart = append(seen, shadow), append(apart, e)
			return
		}
		some.Add(o.importOne(f, e, now))
	})
	err = errors.Join(err, o.zone.Add(context.Background(), seen))
	for _, e := range apart {
		if !loose(e) && !o.has(f, e) { // what comes in goes by programs from here on, what the node sends does not yet
			some.Add(o.table.Loosen(e.Orig))
		}
		some.Add(o.importOne(f, e, now))
	}
	if o.attached {
		err = errors.Join(err, o.zone.Sent(context.Background()))
	}
	for _, a := range o.importer.Predecessor.Affinity {
		if a.Client.Is6() == six {
			some.Add(f.ImportAffinity(o.importer, a, now))
		}
	}
	return errors.Join(err, some.Err())
}

// loose reports whether windows of a connection are not looked at.
func loose(e conntrack.Entry) bool {
	return e.Orig.Proto != unix.IPPROTO_TCP || e.TCP.OrigFlags&e.TCP.RepFlags&conntrack.TCPLiberal != 0
}

// has reports whether programs have a connection: it was imported, is the same still, and has not
// ended and begun anew meanwhile, in which case programs have removed it.
func (o *handoverImport) has(f tables.ImportTables, e conntrack.Entry) bool {
	known := f.Knows(e.Orig)
	if !known || o.begun {
		return known
	}
	was, ok := o.done[e.Orig]
	return ok && was.answers == e.Reply && was.phase <= phaseOf(e)
}

// importOne imports a connection that was not yet.
func (o *handoverImport) importOne(f tables.ImportTables, e conntrack.Entry, now uint32) error {
	if o.has(f, e) {
		return nil
	}
	if was, ok := o.done[e.Orig]; ok && !o.begun && f.Knows(e.Orig) { // a new one took its place
		if err := f.ForgetImported(e.Orig, was.answers); err != nil {
			return err
		}
	}
	took, err := f.ImportConnection(o.importer, e, now, o.begun)
	if took {
		o.note(e)
	}
	return err
}

// importInStack imports what connection tracking makes of a connection that it goes on
// translating.
func (o *handoverImport) importInStack(f tables.ImportTables, e conntrack.Entry, now uint32) error {
	o.inStack[e.Orig] = e
	if e.Orig = e.Reply.Reversed(); o.has(f, e) {
		return nil
	}
	from := o.importer
	from.Which, from.Predecessor = flowhandover.ImportAll, conntrack.Left{} // it is the node's own, whoever translates
	took, err := f.ImportConnection(from, e, now, o.begun)
	if took {
		o.done[e.Orig] = importedAs{e.Reply, phaseOf(e)}
		o.flows++
	}
	return err
}

// keepInStack lets connection tracking go on translating what it has to, whatever becomes of the
// rules and the routes. A source that was translated by masquerading is bound to the interface by
// which packets left, and the connection forgotten with the first one that leaves by another
// (nf_nat_oif_changed); one that is written is not.
func (o *handoverImport) keepInStack() error {
	if len(o.inStack) == 0 {
		return nil
	}
	var some conntrack.Some
	some.Add(conntrack.Keep())
	for of, e := range o.inStack {
		if e.Reply.Dst == e.Orig.Src && e.Reply.DstPort == e.Orig.SrcPort {
			continue
		}
		now, found, err := o.table.Find(of)
		if err == nil && found && now.Reply == e.Reply {
			now.TCP.OrigFlags |= conntrack.TCPLiberal
			now.TCP.RepFlags |= conntrack.TCPLiberal
			if err = o.table.Delete(of); err == nil {
				_, err = o.table.Put(now, func(conntrack.Entry) bool { return false })
			}
		}
		some.Add(err)
	}
	return some.Err()
}

// note notes what is to be done for a connection that was imported.
func (o *handoverImport) note(e conntrack.Entry) {
	o.done[e.Orig] = importedAs{e.Reply, phaseOf(e)}
	o.flows++
	if route, ok := o.importer.MarkedRoute(e); e.Translated() || ok && route.HandsOn {
		o.translated = append(o.translated, e)
	}
	if !loose(e) {
		o.loosen = append(o.loosen, e.Orig)
	}
}

// kernelRoute asks the kernel's routes: the interface and the gateway, or the address itself where
// it is on the link.
func kernelRoute(to netip.Addr) (ifindex int, via netip.Addr, ok bool) {
	found, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(found) == 0 {
		return 0, via, false
	}
	via = to
	if gw, ok := netip.AddrFromSlice(found[0].Gw); ok && !gw.IsUnspecified() {
		via = gw.Unmap()
	}
	return found[0].LinkIndex, via, via.Is6() == to.Is6()
}

// replaceTracked is called when all programs are attached, and packets are kept apart or held back:
// what the stack sees of connections from now on is not what connection tracking translates. What
// the stack sees of one may have the tuple of another one that is translated: all of these go
// first.
func (o *handoverImport) replaceTracked() error {
	var some conntrack.Some
	var seen []conntrack.Entry
	rest := o.translated[:0]
	for _, e := range o.translated {
		s, ok := o.importer.Shadow(e)
		if !ok {
			rest = append(rest, e)
			continue
		}
		some.Add(o.table.Delete(e.Orig))
		seen = append(seen, s)
	}
	o.translated = rest
	for _, e := range seen {
		_, err := o.table.Put(e, func(conntrack.Entry) bool { return true })
		some.Add(err)
	}
	return some.Err()
}

// endImport lets packets go on. With done programs carry them: connection tracking forgets what it
// translated, which would be wrong when it comes back into force. It reports whether there is more
// to do by the next Apply: to read all connections takes long, and tables are written in between.
func (d *Driver) endImport(done bool) (more bool) {
	o := d.importing
	if o == nil {
		return false
	}
	if done && d.opts.Import == flowhandover.ImportAll && o.step < stepsToBegin {
		if err := d.beginFlows(o); err != nil {
			d.log.Warn("taking over connections from another data plane", "error", err)
		}
		o.step++
		return true
	}
	if done && o.release != nil && time.Since(o.held) > conntrack.HoldTime/2 {
		d.hold(o) // no packet may be translated anew between what is deleted now and what takes its place
	}
	var err error
	if done {
		err = errors.Join(o.replaceTracked(), o.keepInStack(), d.endMarks(o))
	}
	held := time.Since(o.held)
	if o.release != nil {
		err = errors.Join(err, o.release())
		o.release = nil
		if held = time.Since(o.held); held > conntrack.HoldTime {
			d.log.Warn("packets were held back for a shorter time than the change took; connections that began meanwhile may be lost", "took", held.Round(time.Millisecond))
		}
	}
	if done {
		d.importing, d.importDone = nil, true
		d.limits.adoptSoon()
		defer o.table.Close()
		var some conntrack.Some
		for _, e := range o.translated {
			some.Add(o.table.Delete(e.Orig))
		}
		err = errors.Join(err, some.Err())
		d.log.Info("connections were taken over from connection tracking", "flows", o.flows, "took", held.Round(time.Millisecond))
	}
	if err != nil {
		d.log.Warn("taking over connections from another data plane", "error", err)
	}
	return false
}

// stepsToBegin are those of beginFlows, each of which reads all connections once.
const stepsToBegin = 3

// beginFlows makes the next step of letting programs begin flows, once they have those that the
// other data plane began meanwhile.
func (d *Driver) beginFlows(o *handoverImport) error {
	var err error
	switch o.step {
	case 0:
		o.attached = true
		err = o.zone.Sent(context.Background())
	case 1: // then what began until now
		d.machine.HandOver, o.begun = false, true
		err = d.tables.ChangeFlags(0, abi.SetHandOver)
	case 2: // then what was beginning
		conntrack.AwaitPackets()
	}
	d.importTracked(o)
	return err
}

// dropImport ends what was not done.
func (d *Driver) dropImport() {
	if d.importing != nil {
		d.importing.table.Close()
		d.importing = nil
	}
}
