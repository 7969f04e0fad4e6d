package ebpf

import (
	"context"
	"errors"
	"time"

	"github.com/weir-net/weir/internal/conntrack"
)

// takeOver is the taking over of tracked connections from another data plane, while programs are being attached. It takes them over
// before, holds back what connection tracking does not know, takes over what began meanwhile, and lets the ways in be attached first:
// when what comes out of them meets the programs of the ways out, no packet is translated by both.
type takeOver struct {
	table   *conntrack.Table
	taker   taker
	release func() error
	done    map[conntrack.Tuple]struct{}
	// translated are those taken over that connection tracking would go on translating.
	translated []conntrack.Entry
	flows      int
	held       time.Time
}

// beginTakeOver does what comes before programs are attached. A failure loses connections, and is no reason not to go on.
func (d *Driver) beginTakeOver() {
	if !d.opts.TakeOver || d.tookOver {
		return
	}
	table, err := conntrack.Open()
	if err != nil {
		d.tookOver = true
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	o := &takeOver{table: table, taker: taker{d.state, d.ifindex}, release: func() error { return nil }, done: map[conntrack.Tuple]struct{}{}}
	d.takeTracked(o)
	set := d.state.Settings
	if set.InterfacePrefix != "" {
		o.release, err = conntrack.Hold(context.Background(), conntrack.HoldOptions{InterfacePrefix: set.InterfacePrefix, TunnelPort: set.Tunnel.Port})
		if err != nil {
			d.log.Info("connections that begin while the data plane changes may be lost", "error", err)
		}
	}
	o.held = time.Now()
	d.takeTracked(o)
	d.over = o
}

// takeTracked takes over what was not yet.
func (d *Driver) takeTracked(o *takeOver) {
	clock, err := newKernelClock()
	if err != nil {
		d.log.Warn("connections that another data plane translated are lost", "error", err)
		return
	}
	defer clock.close()
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

// endTakeOver lets packets go on. With done all programs are attached: connection tracking forgets what it translated, which would be
// wrong when it comes back into force. Otherwise it is all done again at the next try.
func (d *Driver) endTakeOver(done bool) {
	o := d.over
	if o == nil {
		return
	}
	d.over = nil
	defer o.table.Close()
	var err error
	if done {
		err = o.turnOver()
	}
	err = errors.Join(err, o.release())
	held := time.Since(o.held)
	if done {
		d.tookOver = true
		for _, e := range o.translated {
			err = errors.Join(err, o.table.Delete(e.Orig))
		}
	}
	if err != nil {
		d.log.Warn("taking over connections from another data plane", "error", err)
	}
	d.log.Info("connections were taken over from connection tracking", "flows", o.flows, "held back for", held.Round(time.Millisecond))
}

// take writes a tracked connection into the flow maps and reports whether it is one for them.
func (t *familyTables[A]) take(from taker, e conntrack.Entry, now uint32) (bool, error) {
	f, ok := takenOf[A](from, e, now, t.current.Epoch)
	if !ok {
		return false, nil
	}
	m := t.flowsNew
	if f.established {
		m = t.flows
	}
	_, err1 := addFlow(m, f.back, f.here)
	_, err2 := addFlow(m, f.key, f.there)
	return true, errors.Join(err1, err2)
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
