// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/handover"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/nodestate"
)

// A live process changes its data plane as an agent does, with both drivers in it
// (handover.Change), and stops at each step of the change until it is ordered to go on.

// order is what a live process is to do, one thing at a time.
type order struct {
	State *nodestate.State // to be applied: by the driver in force,
	Both  bool             // and by the one that takes its place
	To    string           // the data plane to change to,
	Whole bool             // without standing still
	GoOn  bool
}

// Where a live process stops.
const (
	atPiece    = "after an Apply of the successor" // eBPF; what is submitted is applied by its next one
	atRemember = "while connections are handed over"
	atEnd      = "the end"
	atLoading  = "before programs are loaded"
)

// stopped is its answer.
type stopped struct {
	At  string // where it stopped
	Err string
}

// live is a node that goes over to another data plane in the process of its driver.
type live struct{ *driverProcess }

// startLive starts the node's driver as a live process.
func (n *node) startLive(plane string) live {
	n.lan.t.Helper()
	n.driver.kill()
	n.driver.plane, n.driver.live = plane, true
	n.driver.start()
	return live{n.driver}
}

// startHeld starts the node's eBPF driver anew, which loads its programs when it is ordered to go
// on.
func (n *node) startHeld() live {
	n.driver.holds = true
	defer func() { n.driver.holds = false }()
	return n.startLive("ebpf")
}

// do gives the process an order and returns where it stops then.
func (l live) do(o order) string {
	l.t.Helper()
	if err := l.in.Encode(o); err != nil {
		l.t.Fatalf("%s: %v", l.node.name, err)
	}
	if !l.out.Scan() {
		l.t.Fatalf("%s: the driver is gone: %v", l.node.name, l.out.Err())
	}
	var s stopped
	if err := json.Unmarshal(l.out.Bytes(), &s); err != nil {
		l.t.Fatal(err)
	}
	if s.Err != "" {
		l.t.Fatalf("%s: %s", l.node.name, s.Err)
	}
	return s.At
}

// liver is the process.
type liver struct {
	log   *slog.Logger
	plane handover.Predecessor // in force
	loop  *dataplane.Loop
	end   context.CancelFunc // of the loop
	last  *nodestate.State   // that was submitted
	whole bool
	at    chan stopped
	goOn  chan struct{}

	held    chan struct{}         // closed when programs may be loaded; nil = they may
	written chan *nodestate.State // by an Apply that waits for them
}

func liveMain(log *slog.Logger) error {
	l := &liver{log: log, at: make(chan stopped), goOn: make(chan struct{})}
	var err error
	switch {
	case os.Getenv("WEIR_TEST_PLANE") == "nft":
		l.plane, err = openNFT(log, false)
	case os.Getenv("WEIR_TEST_HOLDS") == "true":
		l.plane, err = l.openHeld()
	default:
		l.plane, err = openEBPF(log, false, 0)
	}
	if err != nil {
		return err
	}
	l.run()
	in, out := gob.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := out.Encode(l.do(o)); err != nil {
			return err
		}
	}
}

// run begins to apply states to the data plane in force.
func (l *liver) run() {
	ctx, end := context.WithCancel(context.Background())
	l.loop, l.end = dataplane.NewLoop(l.plane, l.log), end
	go l.loop.Run(ctx)
}

func (l *liver) do(o order) stopped {
	switch {
	case o.State != nil:
		l.last = o.State
		gen := l.loop.Submit(o.State, nodestate.All())
		if l.held != nil {
			for s := range l.written {
				if s == o.State {
					break
				}
			}
			return stopped{At: atLoading}
		}
		if o.Both {
			return fault(l.loop.Wait(context.Background(), gen, nil))
		}
		for l.loop.Applied() < gen {
			time.Sleep(time.Millisecond)
		}
		return fault(l.loop.Err())
	case o.To != "":
		l.whole = o.Whole
		c, to, err := l.changeTo(o.To)
		if err != nil {
			return fault(err)
		}
		go func() {
			err := c.Run(context.Background())
			l.end()
			l.plane = to
			l.run()
			l.loop.Submit(l.last, nodestate.All())
			l.at <- stopped{At: atEnd, Err: fault(err).Err}
		}()
	case o.GoOn && l.held != nil:
		close(l.held)
		l.held = nil
		gen := l.loop.Submit(l.last, nodestate.Keys{})
		return fault(l.loop.Wait(context.Background(), gen, nil))
	case o.GoOn:
		l.goOn <- struct{}{}
	}
	return <-l.at
}

func fault(err error) stopped {
	if err != nil {
		return stopped{Err: err.Error()}
	}
	return stopped{}
}

// stop waits until it is ordered to go on.
func (l *liver) stop(at string) {
	if l.whole {
		return
	}
	l.at <- stopped{At: at}
	<-l.goOn
}

// changeTo is what an agent does.
func (l *liver) changeTo(plane string) (handover.Change, handover.Predecessor, error) {
	c := handover.Change{Loop: l.loop, From: l.plane}
	dir := os.Getenv("WEIR_TEST_BPFFS")
	switch plane {
	case "nft":
		to, err := openNFT(l.log, true)
		from := l.plane.(*ebpf.Driver)
		c.To = to
		c.HandOver = func(ctx context.Context) error { return from.ExportFlows(ctx, stoppingHeir{to, l}) }
		c.Remove = func(context.Context) error { return ebpf.Remove(dir) }
		return c, to, err
	case "ebpf":
		atOnce := 2
		if l.whole {
			atOnce = 0
		}
		to, err := openEBPF(l.log, true, atOnce)
		c.To, c.Remove = stoppingDriver{to, l}, nft.Remove
		return c, to, err
	}
	return c, nil, fmt.Errorf("no data plane %q", plane)
}

// stoppingHeir stops whenever it gets affinity: before and after programs begin no
// more flows.
type stoppingHeir struct {
	*nft.Driver
	l *liver
}

func (h stoppingHeir) Remember(all []conntrack.Affinity) error {
	h.l.stop(atRemember)
	return h.Driver.Remember(all)
}

// stoppingDriver stops after each Apply that leaves more to do.
type stoppingDriver struct {
	*ebpf.Driver
	l *liver
}

func (d stoppingDriver) Apply(ctx context.Context, s *nodestate.State, k nodestate.Keys) error {
	err := d.Driver.Apply(ctx, s, k)
	if errors.Is(err, dataplane.ErrUnfinished) {
		d.l.stop(atPiece)
	}
	return err
}

// openHeld opens the eBPF driver as an agent does that is started again.
func (l *liver) openHeld() (handover.Predecessor, error) {
	o, err := ebpfOptions(l.log)
	if err != nil {
		return nil, err
	}
	held := make(chan struct{})
	o.InBackground, o.BeforeLoad = true, func() { <-held }
	l.held, l.written = held, make(chan *nodestate.State, 100)
	d, err := ebpf.New(o)
	return heldDriver{d, l.written}, err
}

// heldDriver reports which states were written before its programs are loaded.
type heldDriver struct {
	*ebpf.Driver
	written chan<- *nodestate.State
}

func (d heldDriver) Apply(ctx context.Context, s *nodestate.State, k nodestate.Keys) error {
	err := d.Driver.Apply(ctx, s, k)
	if waiting := (*dataplane.Waiting)(nil); errors.As(err, &waiting) {
		d.written <- s
	}
	return err
}
