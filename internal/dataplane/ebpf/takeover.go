package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
)

// TakeOver is which connections of another data plane are taken over.
type TakeOver int

const (
	TakeNothing    TakeOver = iota
	TakeTranslated          // those that a kube-proxy translated to pods and to backends of Services
	TakeAll                 // those of our own data plane of standard Linux
)

// takeAgain is how long nothing is taken over after programs could be attached nowhere.
const takeAgain = 10 * time.Second

// takeOver is the taking over of tracked connections from another data plane, while programs are being attached. It takes them over before.
// Of our own data plane what has no flow passes the programs until all of them are attached, and what began meanwhile was taken over; and
// what both translate and the stack sees is kept apart (conntrack.Beside). Beside a kube-proxy, whose tables judge nothing, packets of no
// known connection are held back instead. The ways in are attached first: when what comes out of them meets the programs of the ways
// out, no packet is translated by both.
type takeOver struct {
	table   *conntrack.Table
	beside  *conntrack.Beside
	taker   taker
	release func() error // nil = nothing is held back
	done    map[conntrack.Tuple]struct{}
	// translated are those taken over that connection tracking would go on translating.
	translated []conntrack.Entry
	shadows    []conntrack.Entry // what of those is to be kept apart
	loosen     []conntrack.Tuple
	flows      int
	took, held time.Time
}

// beginTakeOver does what comes before programs are attached. A failure loses connections, and is no reason not to go on. Packets are
// held back once: where programs could be attached nowhere, the next tries do without, and look seldom for what is to be taken over.
func (d *Driver) beginTakeOver() {
	if d.opts.TakeOver == TakeNothing || d.tookOver {
		return
	}
	if o := d.over; o != nil {
		if time.Since(o.took) >= takeAgain {
			clear(o.done)
			o.translated, o.flows = nil, 0
			o.taker.state = d.state
			d.takeTracked(o)
		}
		return
	}
	table, err := conntrack.Open()
	if err != nil {
		d.tookOver, d.machine.handOver = true, false
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	o := &takeOver{table: table, beside: conntrack.NewBeside(table), taker: taker{state: d.state, ifindex: d.ifindex, which: d.opts.TakeOver, route: kernelRoute}, done: map[conntrack.Tuple]struct{}{}}
	d.takeTracked(o)
	set := d.state.Settings
	o.held = time.Now()
	if d.opts.TakeOver == TakeAll {
		d.over = o
		return
	}
	if set.InterfacePrefix != "" {
		o.release, err = conntrack.Hold(context.Background(), conntrack.HoldOptions{InterfacePrefix: set.InterfacePrefix, TunnelPort: set.Tunnel.Port})
		if err != nil {
			d.log.Info("connections that begin while the data plane changes may be lost", "error", err)
		}
	}
	d.takeTracked(o)
	d.over = o
}

// carries reports whether a way in has its program: single interfaces that have none do not keep the others' packets from it.
func (d *Driver) carries() bool {
	for s := range d.programs.at {
		if s.hook == fromWorkload || s.hook == fromUplink {
			return true
		}
	}
	return false
}

// takeTracked takes over what was not yet.
func (d *Driver) takeTracked(o *takeOver) {
	clock, err := newKernelClock()
	if err != nil {
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	defer clock.close()
	o.took = time.Now()
	now, err := clock.now()
	errs := []error{err}
	if d.opts.TakeOver == TakeAll && d.opts.Left != nil {
		var err error
		o.taker.left, err = d.opts.Left()
		errs = append(errs, err)
	}
	for i, f := range d.tables.families {
		errs = append(errs, o.takeFamily(f, d.both()[i].family == ipv6Name, now))
	}
	if d.opts.TakeOver == TakeAll {
		for _, of := range o.loosen { // packets of one direction may come by programs, and those of the other not
			errs = append(errs, o.table.Loosen(of))
		}
		errs = append(errs, o.beside.Add(context.Background(), o.shadows))
	}
	o.loosen, o.shadows = nil, nil
	if err := errors.Join(errs...); err != nil {
		d.log.Warn("some connections that another data plane translated are lost", "error", err)
	}
}

// takeFamily takes over what was not yet of a family.
func (o *takeOver) takeFamily(f family, six bool, now uint32) error {
	var errs []error
	take := func(e conntrack.Entry) {
		if _, done := o.done[e.Orig]; done {
			return
		}
		took, err := f.take(o.taker, e, now)
		if err != nil && len(errs) < 4 {
			errs = append(errs, err)
		}
		if took {
			o.note(e)
		}
	}
	for _, e := range o.taker.left.Straight {
		if e.Orig.Src.Is6() == six {
			take(e)
		}
	}
	errs = append(errs, o.table.Each(six, take))
	for _, a := range o.taker.left.Affinity {
		if a.Client.Is6() == six {
			errs = append(errs, f.takeAffinity(o.taker, a, now))
		}
	}
	return errors.Join(errs...)
}

// note notes what is to be done for a connection that was taken over.
func (o *takeOver) note(e conntrack.Entry) {
	o.done[e.Orig] = struct{}{}
	o.flows++
	if way, ok := o.taker.way(e); e.Translated() || ok && way.HandsOn {
		o.translated = append(o.translated, e)
	}
	if seen, ok := o.taker.shadow(e); ok {
		o.shadows = append(o.shadows, seen)
	}
	if e.Orig.Proto == unix.IPPROTO_TCP {
		o.loosen = append(o.loosen, e.Orig)
	}
}

// kernelRoute asks the kernel's routes: the interface and the gateway, or the address itself where it is on the link.
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

// turnOver is called when all programs are attached, and packets are kept apart or held back: what the stack sees of connections from now on is not
// what connection tracking translates.
func (o *takeOver) turnOver() error {
	var errs []error
	rest := o.translated[:0]
	for _, e := range o.translated {
		seen, ok := o.taker.shadow(e)
		if !ok {
			rest = append(rest, e)
			continue
		}
		err := o.table.Delete(e.Orig)
		if err == nil {
			_, err = o.table.Put(seen, func(conntrack.Entry) bool { return true })
		}
		errs = append(errs, err)
	}
	o.translated = rest
	return errors.Join(errs...)
}

// endTakeOver lets packets go on. With done programs carry them: connection tracking forgets what it translated, which would be
// wrong when it comes back into force.
func (d *Driver) endTakeOver(done bool) {
	o := d.over
	if o == nil {
		return
	}
	var err error
	if done && d.opts.TakeOver == TakeAll {
		err = errors.Join(o.beside.Sent(context.Background()), d.beginFlows(o))
	}
	if done {
		err = errors.Join(err, o.turnOver(), o.beside.Close())
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
		d.over, d.tookOver = nil, true
		defer o.table.Close()
		for _, e := range o.translated {
			err = errors.Join(err, o.table.Delete(e.Orig))
		}
		d.log.Info("connections were taken over from connection tracking", "flows", o.flows, "took", held.Round(time.Millisecond))
	}
	if err != nil {
		d.log.Warn("taking over connections from another data plane", "error", err)
	}
}

// beginFlows lets programs begin flows, once they have those that the other data plane began meanwhile.
func (d *Driver) beginFlows(o *takeOver) error {
	d.takeTracked(o)
	d.machine.handOver = false
	var errs []error
	d.tables.each(func(f family) { errs = append(errs, f.endHandOver()) })
	d.takeTracked(o) // what was beginning
	return errors.Join(errs...)
}

// endHandOver writes that what has no flow begins one.
func (t *familyTables[A]) endHandOver() error {
	v := t.current
	v.Flags &^= setHandOver
	if v == t.current {
		return nil
	}
	t.counts.quiet++
	return t.putSettings(v)
}

// dropTakeOver ends what was not done.
func (d *Driver) dropTakeOver() {
	if d.over != nil {
		d.over.table.Close()
		d.over = nil
	}
}

// take writes a tracked connection into the flow maps, wholly or not at all, and reports whether it is there.
func (t *familyTables[A]) take(from taker, e conntrack.Entry, now uint32) (bool, error) {
	f, ok := takenOf[A](from, e, now, t.current.Epoch)
	if !ok {
		return false, nil
	}
	m := t.flowsNew
	if f.established {
		m = t.flows
	}
	put, err := addFlow(m, f.back, f.here)
	if err != nil {
		return false, err
	}
	if _, err := addFlow(m, f.key, f.there); err != nil {
		if put {
			err = errors.Join(err, m.Delete(&f.back))
		}
		return false, err
	}
	return true, nil
}

// rank orders sites as they are attached: the ways in before the ways out, and those that answers of pods come by before pods.
func (s site) rank() int {
	switch s.hook {
	case fromUplink, fromTunnel:
		return 0
	case fromWorkload:
		return 1
	}
	return 2
}
