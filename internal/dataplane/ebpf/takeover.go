package ebpf

import (
	"context"
	"errors"
	"time"

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

// takeOver is the taking over of tracked connections from another data plane, while programs are being attached. It takes them over
// before, holds back what connection tracking does not know, takes over what began meanwhile, and lets the ways in be attached first:
// when what comes out of them meets the programs of the ways out, no packet is translated by both.
type takeOver struct {
	table   *conntrack.Table
	taker   taker
	release func() error // nil = nothing is held back
	done    map[conntrack.Tuple]struct{}
	// translated are those taken over that connection tracking would go on translating.
	translated []conntrack.Entry
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
		d.tookOver = true
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	o := &takeOver{table: table, taker: taker{d.state, d.ifindex, d.opts.TakeOver}, done: map[conntrack.Tuple]struct{}{}}
	d.takeTracked(o)
	set := d.state.Settings
	o.held = time.Now()
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
	for i, f := range d.tables.families {
		err := o.table.Each(d.both()[i].family == ipv6Name, func(e conntrack.Entry) {
			if _, done := o.done[e.Orig]; done {
				return
			}
			took, err := f.take(o.taker, e, now)
			if err != nil && len(errs) < 4 {
				errs = append(errs, err)
			}
			if !took {
				return
			}
			o.done[e.Orig] = struct{}{}
			o.flows++
			if e.Translated() {
				o.translated = append(o.translated, e)
			}
		})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		d.log.Warn("some connections that another data plane translated are lost", "error", err)
	}
}

// turnOver is called when all programs are attached and packets are still held back: what the stack sees of connections from now on is not
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
	if done {
		err = o.turnOver()
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
		d.log.Info("connections were taken over from connection tracking", "flows", o.flows, "held back for", held.Round(time.Millisecond))
	}
	if err != nil {
		d.log.Warn("taking over connections from another data plane", "error", err)
	}
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
