// SPDX-License-Identifier: Apache-2.0

// Package source decides from whom an agent has the cluster: from the API server, which each agent
// then watches by itself, or from a fan-out. Where it may choose it takes a fan-out while there are
// replicas of one, and changes over while it works: what the new source has takes the place of what
// the old one had once all of it was read.
package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/watch"
)

// Mode says which sources an agent may have.
type Mode string

const (
	Auto   Mode = "auto"   // a fan-out while there are replicas of one, else the API server
	Never  Mode = "never"  // the API server
	Always Mode = "always" // a fan-out
)

// ParseMode reads a mode; empty = Auto.
func ParseMode(text string) (Mode, error) {
	switch m := Mode(text); m {
	case "":
		return Auto, nil
	case Auto, Never, Always:
		return m, nil
	}
	return "", fmt.Errorf("%q is none of auto, never, always", text)
}

// Source follows the cluster: a watch.Watcher, or a Fed.
type Source interface {
	Start(context.Context)
	AwaitRead(context.Context) error
	Run(context.Context, watch.Sink) error
	Status() watch.Status
	PodForAdd(ctx context.Context, name model.Name, uid string) (*watch.AddPod, error)
	PodLives(name model.Name, uid, node string) bool
}

// ErrPodWaits says that a pod is not started because no fan-out has sent what selects it.
var ErrPodWaits = client.ErrPodWaits

// Fed is a Source that a fan-out feeds: a client.Client.
type Fed interface {
	Source
	SetEndpoints(map[netip.Addr]model.Name)
	Owner(netip.Addr) (model.Name, bool)
	// Hold gives it the pods of the node with their policies, as another source brought them, until
	// a fan-out sends any.
	Hold(map[model.Name]*model.Pod)
}

// Config is what a Chooser needs.
type Config struct {
	Mode Mode
	Log  *slog.Logger
	// API and FanOut make a source; it is not started.
	API    func() (Source, error)
	FanOut func() Fed
	// Replicas finds fan-outs.
	Replicas *Replicas
	// CheckEvery is about the time between two looks whether another source is to be used; 0 = a
	// minute, so that the agents of a large cluster change over within some minutes.
	CheckEvery time.Duration
	// LastResort has the agent of Node read the API server by itself in its turn (turns.go) where
	// no fan-out could be reached for long. Nodes returns the names of the nodes that are known.
	LastResort bool
	Node       string
	Nodes      func() []string
}

// Chooser follows the cluster by the source that is to be used. It is safe for concurrent use.
type Chooser struct {
	cfg Config

	mu        sync.Mutex
	current   Source
	feeding   Fed // the same, where it is a fan-out's
	endpoints map[netip.Addr]model.Name
	until     time.Time                 // the end of the agent's turn; zero = it is not its turn
	read      bool                      // some source has brought all of the cluster
	own       map[model.Name]*model.Pod // pods of the node, where LastResort
}

// New returns a Chooser that has chosen its first source: with Auto, what can be said of fan-outs
// within a moment decides, and what was known of them last where the API server does not answer: it
// cannot tell of the cluster either.
func New(ctx context.Context, cfg Config) (*Chooser, error) {
	if cfg.CheckEvery == 0 {
		cfg.CheckEvery = time.Minute
	}
	c := &Chooser{cfg: cfg}
	fanOut := cfg.Mode == Always
	if cfg.Mode == Auto {
		ctx, cancel := context.WithTimeout(ctx, firstLook)
		found, err := cfg.Replicas.Known(ctx)
		cancel()
		fanOut = err == nil && len(found) > 0
	}
	var err error
	c.current, c.feeding, err = c.source(fanOut)
	return c, err
}

// firstLook bounds how long the agent's start waits to know whether there is a fan-out.
const firstLook = 2 * time.Second

// source makes a source.
func (c *Chooser) source(fanOut bool) (Source, Fed, error) {
	if !fanOut {
		s, err := c.cfg.API()
		return s, nil, err
	}
	f := c.cfg.FanOut()
	c.mu.Lock()
	f.SetEndpoints(c.endpoints)
	c.mu.Unlock()
	return f, f, nil
}

func (c *Chooser) set(s Source, feeding Fed, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.feeding, c.until = s, feeding, until
	if feeding != nil {
		feeding.SetEndpoints(c.endpoints)
	}
}

func (c *Chooser) get() Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Start begins to read.
func (c *Chooser) Start(ctx context.Context) { c.get().Start(ctx) }

// AwaitRead waits until everything was read once.
func (c *Chooser) AwaitRead(ctx context.Context) error { return c.get().AwaitRead(ctx) }

// Status says how the source gets on. What one has brought stays while another one begins.
func (c *Chooser) Status() watch.Status {
	st := c.get().Status()
	c.mu.Lock()
	defer c.mu.Unlock()
	st.Synced = st.Synced || c.read
	return st
}

// PodForAdd returns the pod of a CNI ADD.
func (c *Chooser) PodForAdd(ctx context.Context, name model.Name, uid string) (*watch.AddPod, error) {
	return c.get().PodForAdd(ctx, name, uid)
}

// PodLives reports whether a pod exists and is on the node; when in doubt it does.
func (c *Chooser) PodLives(name model.Name, uid, node string) bool {
	return c.get().PodLives(name, uid, node)
}

// Fed reports whether the source is a fan-out, be there one or not.
func (c *Chooser) Fed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.feeding != nil
}

// Owner returns the pod that has an address, where the source is a fan-out: the API server's source
// brings all pods.
func (c *Chooser) Owner(a netip.Addr) (model.Name, bool) {
	c.mu.Lock()
	feeding := c.feeding
	c.mu.Unlock()
	if feeding == nil {
		return model.Name{}, false
	}
	return feeding.Owner(a)
}

// SetEndpoints says whose interfaces the node has, by address: what a fan-out sends depends on it.
func (c *Chooser) SetEndpoints(now map[netip.Addr]model.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = now
	if c.feeding != nil {
		c.feeding.SetEndpoints(now)
	}
}

// Run hands on what the sources bring until ctx ends.
func (c *Chooser) Run(ctx context.Context, sink watch.Sink) error {
	noting := func(ctx context.Context, b *watch.Batch) {
		sink(ctx, b)
		c.note(b)
	}
	for {
		err := c.runOne(ctx, noting)
		if ctx.Err() != nil || err != nil {
			return err
		}
	}
}

// note notes what a batch has brought.
func (c *Chooser) note(b *watch.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = c.read || b.Full
	if !c.cfg.LastResort {
		return
	}
	if c.own == nil {
		c.own = map[model.Name]*model.Pod{}
	}
	b.NoteOwn(c.own, c.cfg.Node)
}

// candidate is a source that is to take the place of the one that is used, when it has read the
// cluster.
type candidate struct {
	source Source
	fed    Fed
	// until is when it is not waited for any longer; zero = it is. Then it is given up, or takes
	// the place as it is, where the one that is used may not go on.
	until  time.Time
	anyway bool
	turn   time.Time // the end of the agent's turn, where that is why
	giveUp context.CancelFunc
}

// runOne runs the source that is used now until another one has taken its place; nil = it has.
func (c *Chooser) runOne(ctx context.Context, sink watch.Sink) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.get().Run(running, sink) }()
	var next *candidate
	for taken := false; !taken; {
		if next = c.another(ctx); next == nil { // ctx has ended, or it is always the same source
			return <-ended
		}
		// It goes on reading where ctx ends before: Run stops it, or that it is given up.
		var reading context.Context
		reading, next.giveUp = context.WithCancel(ctx)
		next.source.Start(reading)
		err := await(ctx, next)
		if ctx.Err() != nil {
			return errors.Join(err, <-ended)
		}
		if taken = err == nil || next.anyway; !taken {
			next.giveUp()
			c.cfg.Log.Warn("another source of the cluster could not be read in time", "err", err)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		return err
	}
	if next.fed != nil {
		c.mu.Lock()
		next.fed.Hold(maps.Clone(c.own))
		c.mu.Unlock()
	}
	c.set(next.source, next.fed, next.turn)
	from := "the API server"
	switch {
	case next.fed != nil:
		from = "a fan-out"
	case !next.turn.IsZero():
		from = "the API server, as no fan-out can be reached, until " + next.turn.UTC().Format(time.RFC3339)
	}
	c.cfg.Log.Info("the cluster is followed by another source from now on", "source", from)
	return nil
}

// await waits until a candidate has read the cluster.
func await(ctx context.Context, n *candidate) error {
	if !n.until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, n.until)
		defer cancel()
	}
	return n.source.AwaitRead(ctx)
}

// whenCutOff is about the time between two looks of an agent that no fan-out feeds any more.
const whenCutOff = 4 * time.Second

// another waits until another source is to be used, and returns it; nil = ctx has ended.
func (c *Chooser) another(ctx context.Context) *candidate {
	c.mu.Lock()
	until := c.until
	c.mu.Unlock()
	if !until.IsZero() { // a fan-out, as soon as there is one
		_, fed, _ := c.source(true)
		return &candidate{source: fed, fed: fed, until: until, anyway: true}
	}
	if c.cfg.Mode != Auto && !c.cfg.LastResort || c.cfg.Mode == Never {
		<-ctx.Done()
		return nil
	}
	for {
		fed, every := c.Fed(), c.cfg.CheckEvery
		st := c.Status()
		if fed && !st.Connected { // the longer that is so, the less often
			every = min(every, max(whenCutOff, time.Since(st.Since)/8))
		}
		if sleep.For(ctx, time.Duration((0.5+rand.Float64())*float64(every))) != nil {
			return nil
		}
		if c.cfg.Mode == Auto {
			if next := c.otherKind(ctx, fed); next != nil {
				return next
			}
		}
		if next := c.inTurn(ctx); next != nil {
			return next
		}
	}
}

// otherKind returns a source of the other kind where the agent is to use that; nil = what is used
// goes on.
func (c *Chooser) otherKind(ctx context.Context, fed bool) *candidate {
	look, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	found, err := c.cfg.Replicas.Find(look)
	if err != nil || fed == (len(found) > 0) || fed && !c.cfg.Replicas.NoneWanted() {
		return nil
	}
	next, feeding, err := c.source(!fed)
	if err != nil {
		c.cfg.Log.Warn("another source of the cluster cannot be used", "err", err)
		return nil
	}
	return &candidate{source: next, fed: feeding}
}

// inTurn waits for the agent's turn to read the API server by itself where no fan-out could be
// reached for long, and returns the source; nil = one is reached, or the turn is not soon.
func (c *Chooser) inTurn(ctx context.Context) *candidate {
	if !c.cfg.LastResort || !c.unfed() {
		return nil
	}
	wait, lasts := nextTurn(place(c.cfg.Nodes(), c.cfg.Node), time.Now())
	if wait > c.cfg.CheckEvery { // by then more may be known
		return nil
	}
	if sleep.For(ctx, wait) != nil || !c.unfed() {
		return nil
	}
	end := time.Now().Add(lasts)
	next, _, err := c.source(false)
	if err != nil {
		c.cfg.Log.Warn("the API server cannot be read in the place of a fan-out", "err", err)
		return nil
	}
	return &candidate{source: next, until: end, turn: end}
}

// unfed reports whether no fan-out could be reached for long. One that is cut off from the API
// server is as good as the API server would be.
func (c *Chooser) unfed() bool {
	st := c.Status()
	return c.Fed() && !st.Connected && st.FanOut == "" && time.Since(st.Since) >= noFanOutFor
}
