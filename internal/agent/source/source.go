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
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/model"
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
}

// Chooser follows the cluster by the source that is to be used. It is safe for concurrent use.
type Chooser struct {
	cfg Config

	mu        sync.Mutex
	current   Source
	feeding   Fed // the same, where it is a fan-out's
	endpoints map[netip.Addr]model.Name
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

func (c *Chooser) set(s Source, feeding Fed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.feeding = s, feeding
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

// Status says how the source gets on.
func (c *Chooser) Status() watch.Status { return c.get().Status() }

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
	for {
		err := c.runOne(ctx, sink)
		if ctx.Err() != nil || err != nil {
			return err
		}
	}
}

// runOne runs the source that is used now until another one has taken its place; nil = it has.
func (c *Chooser) runOne(ctx context.Context, sink watch.Sink) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.get().Run(running, sink) }()
	next, feeding := c.another(ctx)
	if next == nil { // ctx has ended, or it is always the same source
		return <-ended
	}
	// It goes on reading where ctx ends before: Run stops it.
	next.Start(ctx)
	if err := next.AwaitRead(ctx); err != nil {
		return errors.Join(err, <-ended)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		return err
	}
	c.set(next, feeding)
	from := "the API server"
	if feeding != nil {
		from = "a fan-out"
	}
	c.cfg.Log.Info("the cluster is followed by another source from now on", "source", from)
	return nil
}

// whenCutOff is about the time between two looks of an agent that no fan-out feeds any more.
const whenCutOff = 4 * time.Second

// another waits until another source is to be used, and returns it; nil = ctx has ended.
func (c *Chooser) another(ctx context.Context) (Source, Fed) {
	if c.cfg.Mode != Auto {
		<-ctx.Done()
		return nil, nil
	}
	for {
		c.mu.Lock()
		fed, every := c.feeding != nil, c.cfg.CheckEvery
		c.mu.Unlock()
		if fed && !c.Status().Connected {
			every = min(every, whenCutOff)
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(time.Duration((0.5 + rand.Float64()) * float64(every))):
		}
		look, cancel := context.WithTimeout(ctx, firstLook)
		found, err := c.cfg.Replicas.Find(look)
		cancel()
		if err != nil {
			continue // what is used goes on
		}
		if fed == (len(found) > 0) || fed && !c.cfg.Replicas.NoneWanted() {
			continue
		}
		next, feeding, err := c.source(!fed)
		if err != nil {
			c.cfg.Log.Warn("another source of the cluster cannot be used", "err", err)
			continue
		}
		return next, feeding
	}
}

// Replicas finds fan-outs: by EndpointSlices of fixed names, which the controller writes. It
// remembers what was found, also over restarts, for when the API server is away. It is safe for
// concurrent use.
type Replicas struct {
	// Slice reads an EndpointSlice.
	Slice     func(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error)
	Namespace string
	// File keeps what was found over restarts; nil = it is not kept.
	File *statefile.File[[]string]

	mu         sync.Mutex
	loaded     bool
	last       []string
	noneWanted bool
}

// Find returns the replicas that are ready, host:port.
func (r *Replicas) Find(ctx context.Context) ([]string, error) {
	var out []string
	none := true
	for _, name := range []string{names.Slice, names.Slice6} {
		s, err := r.Slice(ctx, r.Namespace, name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read EndpointSlice %s: %w", name, err)
		}
		none = none && s.Annotations[names.WantedAnnotation] == "0"
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				out = append(out, net.JoinHostPort(a, strconv.Itoa(names.Port)))
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noneWanted = none
	if len(out) == 0 && !none {
		return out, nil // those that were there may be again
	}
	r.load()
	if !slices.Equal(r.last, out) && r.File != nil {
		_ = r.File.Save(out) // reported there; the next change is written again
	}
	r.last = out
	return out, nil
}

// load reads what was kept. r.mu is held.
func (r *Replicas) load() {
	if !r.loaded && r.File != nil {
		r.last = r.File.Load()
	}
	r.loaded = true
}

// Known is Find, and what was found last where the API server does not answer soon.
func (r *Replicas) Known(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	r.load()
	last := r.last
	r.mu.Unlock()
	look := ctx
	if len(last) > 0 {
		var cancel context.CancelFunc
		look, cancel = context.WithTimeout(ctx, firstLook)
		defer cancel()
	}
	found, err := r.Find(look)
	if err != nil && len(last) > 0 {
		return last, nil
	}
	return found, err
}

// NoneWanted reports whether the controller wants no replica, rather than that none is ready.
func (r *Replicas) NoneWanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noneWanted
}
