// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/watch"
)

// fake is a source that has read the cluster after a while.
type fake struct {
	name  string
	delay time.Duration

	mu        sync.Mutex
	read      bool
	connected bool
	since     time.Time
	silent    func() bool // it cannot be read; nil = it can
	ended     bool
	endpoints map[netip.Addr]model.Name
	held      map[model.Name]*model.Pod
	stop      context.CancelFunc
}

func (f *fake) Start(ctx context.Context) {
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(f.delay):
			for f.silent != nil && f.silent() {
				if sleep.For(ctx, time.Second) != nil {
					return
				}
			}
			f.mu.Lock()
			f.read, f.connected = true, true
			f.mu.Unlock()
		}
	}()
}

func (f *fake) AwaitRead(ctx context.Context) error {
	for !f.Status().Synced {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(f.delay / 4):
		}
	}
	return nil
}

func (f *fake) Run(ctx context.Context, sink watch.Sink) error {
	if err := f.AwaitRead(ctx); err == nil {
		b := &watch.Batch{Full: true, PoolOrder: []string{f.name}}
		b.Pods = map[model.Name]*model.Pod{{Name: "own"}: {Node: "n1"}, {Name: "other"}: {Node: "n2"}}
		sink(ctx, b)
	}
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	return ctx.Err()
}

func (f *fake) Status() watch.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return watch.Status{Synced: f.read, Connected: f.connected, Since: f.since}
}

func (f *fake) PodForAdd(context.Context, model.Name, string) (*watch.AddPod, error) {
	return &watch.AddPod{UID: f.name}, nil
}

func (f *fake) PodLives(model.Name, string, string) bool         { return true }
func (f *fake) Owner(netip.Addr) (model.Name, bool)              { return model.Name{Name: f.name}, true }
func (f *fake) Hold(pods map[model.Name]*model.Pod)              { f.held = pods }
func (f *fake) SetEndpoints(endpoints map[netip.Addr]model.Name) { f.endpoints = endpoints }

// site is an API server with the slice of the fan-out.
type site struct {
	mu      sync.Mutex
	slice   *discoveryv1.EndpointSlice
	err     error
	api     []*fake
	fed     []*fake
	batches []string // who brought them
	file    string   // of the agent; empty = none
}

func (s *site) set(wanted string, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slice = &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{names.WantedAnnotation: wanted}}}
	for _, a := range addrs {
		s.slice.Endpoints = append(s.slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
}

func (s *site) read(ctx context.Context, _, name string) (*discoveryv1.EndpointSlice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(s.err, context.DeadlineExceeded): // it is silent
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	case s.err != nil:
		return nil, s.err
	case s.slice == nil || name != names.Slice:
		return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	return s.slice, nil
}

func (s *site) start(t *testing.T, mode Mode) *Chooser {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	replicas := &Replicas{Slice: s.read}
	if s.file != "" {
		replicas.File = statefile.New[[]string](s.file, log)
	}
	c, err := New(t.Context(), Config{Mode: mode, Log: log, Replicas: replicas,
		API: func() (Source, error) {
			f := &fake{name: "api", delay: time.Second}
			s.api = append(s.api, f)
			return f, nil
		},
		FanOut: func() Fed {
			f := &fake{name: "fan-out", delay: time.Second}
			s.fed = append(s.fed, f)
			return f
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	c.Start(ctx)
	go func() {
		ended <- c.Run(ctx, func(_ context.Context, b *watch.Batch) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.batches = append(s.batches, b.PoolOrder...)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return c
}

// who says whose PodForAdd it is, and that the other source has ended.
func (s *site) want(t *testing.T, c *Chooser, name string, batches ...string) {
	t.Helper()
	if pod, _ := c.PodForAdd(t.Context(), model.Name{}, ""); pod.UID != name {
		t.Errorf("the source is %s, want %s", pod.UID, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.batches) != len(batches) {
		t.Fatalf("batches of %v, want %v", s.batches, batches)
	}
	for i := range batches {
		if s.batches[i] != batches[i] {
			t.Fatalf("batches of %v, want %v", s.batches, batches)
		}
	}
}

// TestAutoChangesOver holds that an agent takes to a fan-out when there is one, once it has read
// the cluster from it, and back to the API server only when no fan-out is wanted any more.
func TestAutoChangesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{}
		c := s.start(t, Auto)
		endpoints := map[netip.Addr]model.Name{netip.MustParseAddr("10.0.0.1"): {Name: "p"}}
		c.SetEndpoints(endpoints)
		time.Sleep(10 * time.Minute)
		s.want(t, c, "api", "api")
		s.set("2", "192.0.2.1", "192.0.2.2")
		time.Sleep(2 * time.Minute)
		s.want(t, c, "fan-out", "api", "fan-out")
		if !s.api[0].ended || len(s.fed[0].endpoints) != 1 {
			t.Error("the API server is followed still, or the fan-out does not know the endpoints")
		}
		if owner, ok := c.Owner(netip.Addr{}); !ok || owner.Name != "fan-out" {
			t.Error("the fan-out is not asked whose an address is")
		}
		// None is ready, and the API server is away: the agent stays with what it has.
		s.set("2")
		s.fed[0].mu.Lock()
		s.fed[0].connected = false
		s.fed[0].mu.Unlock()
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		s.err = errors.New("connection refused")
		s.mu.Unlock()
		time.Sleep(10 * time.Minute)
		s.want(t, c, "fan-out", "api", "fan-out")
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		s.set("0")
		time.Sleep(2 * time.Minute)
		s.want(t, c, "api", "api", "fan-out", "api")
		if !s.fed[0].ended {
			t.Error("the fan-out is followed still")
		}
	})
}

// TestStartWithoutAPIServer holds that an agent that starts while the API server is away takes to
// the fan-outs that it knew last, be it that the API server refuses or that it is silent.
func TestStartWithoutAPIServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fanouts.json")
	for _, err := range []error{errors.New("connection refused"), context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			before := &site{file: file}
			before.set("2", "192.0.2.1", "2001:db8::1")
			before.start(t, Auto)
			s := &site{file: file, err: err}
			c := s.start(t, Auto)
			if known, err := c.cfg.Replicas.Known(t.Context()); err != nil || !slices.Equal(known, []string{"192.0.2.1:5473", "[2001:db8::1]:5473"}) {
				t.Errorf("known are %v: %v", known, err)
			}
			time.Sleep(10 * time.Second)
			s.want(t, c, "fan-out", "fan-out")
			// It is back, and says that no fan-out is wanted.
			s.mu.Lock()
			s.err = nil
			s.mu.Unlock()
			s.set("0")
			time.Sleep(3 * time.Minute)
			s.want(t, c, "api", "fan-out", "api")
			again := &site{file: file, err: err}
			again.want(t, again.start(t, Auto), "api")
		})
	}
}

// TestModes holds what each mode begins with, and that two of them never change.
func TestModes(t *testing.T) {
	for mode, want := range map[Mode][2]string{Auto: {"api", "fan-out"}, Never: {"api", "api"}, Always: {"fan-out", "fan-out"}} {
		for i, there := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := &site{}
				if there {
					s.set("2", "192.0.2.1")
				}
				c := s.start(t, mode)
				time.Sleep(10 * time.Second)
				s.want(t, c, want[i], want[i])
				if mode != Auto {
					s.set(map[bool]string{true: "0", false: "2"}[there])
					time.Sleep(10 * time.Minute)
					s.want(t, c, want[i], want[i])
				}
			})
		}
	}
	if _, err := ParseMode("sometimes"); err == nil {
		t.Error("a mode that there is not was read")
	}
}
