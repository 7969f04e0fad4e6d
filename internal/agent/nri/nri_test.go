// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nriapi "github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/agent/nri/api"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
)

// runtime is the runtime's half of the interface, as containerd and CRI-O have it.
func runtime(t *testing.T, socket string, pods ...*nriapi.PodSandbox) *adaptation.Adaptation {
	t.Helper()
	dir := t.TempDir()
	r, err := adaptation.New("test", "1",
		func(ctx context.Context, sync adaptation.SyncCB) error {
			_, err := sync(ctx, pods, nil)
			return err
		},
		func(context.Context, []*nriapi.ContainerUpdate) ([]*nriapi.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(filepath.Join(dir, "plugins")), adaptation.WithPluginConfigPath(filepath.Join(dir, "conf.d")))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// start starts a pod as containerd does, which waits for plugins that come in this moment.
func start(ctx context.Context, r *adaptation.Adaptation, name string, ips ...string) error {
	defer r.BlockPluginSync().Unblock()
	return r.RunPodSandbox(ctx, &nriapi.StateChangeEvent{Pod: &nriapi.PodSandbox{Id: "id-" + name, Name: name, Namespace: "ns", Uid: "uid-" + name, Ips: ips}})
}

// plugin runs one until the test ends.
func plugin(t *testing.T, socket string, hold Hold) *Plugin {
	t.Helper()
	p := New(socket, hold, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// connected waits until the plugin is connected, or is not.
func connected(t *testing.T, p *Plugin, want float64) {
	t.Helper()
	await.Within(t, 30*time.Second, "the plugin's connection", func() error {
		if got := testutil.ToFloat64(p.connected); got != want {
			return fmt.Errorf("connected is %v, want %v", got, want)
		}
		return nil
	})
}

// held is how many pods were held with that result.
func held(t *testing.T, p *Plugin, result string) uint64 {
	t.Helper()
	var m dto.Metric
	if err := p.held.WithLabelValues(result).(prometheus.Metric).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

// TestHold starts pods as a runtime does: each waits until its policy is in force.
func TestHold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	type asked struct {
		pod   model.Name
		uid   string
		addrs []netip.Addr
	}
	asks, answer := make(chan asked, 1), make(chan error)
	running := make([]*nriapi.PodSandbox, 3000) // more than one message of the interface
	for i := range running {
		running[i] = &nriapi.PodSandbox{Name: "running", Annotations: map[string]string{"large": string(make([]byte, 2000))}}
	}
	r := runtime(t, socket, running...)
	p := plugin(t, socket, func(ctx context.Context, pod model.Name, uid string, addrs []netip.Addr) error {
		asks <- asked{pod, uid, addrs}
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	connected(t, p, 1)
	for _, c := range []struct {
		name   string
		ips    []string
		err    error
		result string
	}{
		{name: "in force", ips: []string{"10.1.0.1", "fd00::1"}, result: "ready"},
		{name: "not in force", ips: []string{"10.1.0.2", "none"}, err: errors.New("no policy"), result: "late"},
		{name: "still connected", result: "ready"},
	} {
		started := make(chan error, 1)
		go func() { started <- start(context.Background(), r, c.name, c.ips...) }()
		got := <-asks
		want := asked{pod: model.Name{Namespace: "ns", Name: c.name}, uid: "uid-" + c.name}
		for _, ip := range c.ips {
			if a, err := netip.ParseAddr(ip); err == nil {
				want.addrs = append(want.addrs, a)
			}
		}
		if got.pod != want.pod || got.uid != want.uid || !slices.Equal(got.addrs, want.addrs) {
			t.Errorf("%s: asked about %v, want %v", c.name, got, want)
		}
		select {
		case err := <-started:
			t.Errorf("%s: started before the answer: %v", c.name, err)
		default:
		}
		before := held(t, p, c.result)
		answer <- c.err
		if err := <-started; err != nil {
			t.Errorf("%s: the pod does not start: %v", c.name, err)
		}
		if after := held(t, p, c.result); after != before+1 {
			t.Errorf("%s: %d pods count as %s, before %d", c.name, after, c.result, before)
		}
	}
}

// TestLate starts a pod whose policy does not come: it goes on before the runtime loses patience,
// and the next one is held again.
func TestLate(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r := runtime(t, socket)
	p := plugin(t, socket, func(ctx context.Context, pod model.Name, _ string, _ []netip.Addr) error {
		if pod.Name == "late" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	connected(t, p, 1)
	for _, name := range []string{"late", "next", "late", "next"} {
		if err := start(t.Context(), r, name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if testutil.ToFloat64(p.connected) != 1 {
		t.Error("the runtime gave the plugin up")
	}
	if late, ready := held(t, p, "late"), held(t, p, "ready"); late != 2 || ready != 2 {
		t.Errorf("%d pods were late and %d ready, want 2 of each", late, ready)
	}
}

// TestGivenUp has the plugin come before its runtime, and again when that has dropped it.
func TestGivenUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	var stuck atomic.Bool
	p := plugin(t, socket, func(context.Context, model.Name, string, []netip.Addr) error {
		if stuck.Swap(false) {
			time.Sleep(adaptation.DefaultPluginRequestTimeout + time.Second) // although the context has ended
		}
		return nil
	})
	r := runtime(t, socket)
	connected(t, p, 1)
	stuck.Store(true)
	if err := start(t.Context(), r, "stuck"); err != nil {
		t.Errorf("the pod does not start: %v", err)
	}
	connected(t, p, 0)
	connected(t, p, 1)
	before := held(t, p, "ready")
	if err := start(t.Context(), r, "next"); err != nil {
		t.Errorf("the next pod does not start: %v", err)
	}
	if after := held(t, p, "ready"); after != before+1 {
		t.Errorf("%d pods were held, before %d", after, before)
	}
}

// TestRequest asks as runtimes with NRI 0.12 do, which have a request for a pod that starts.
func TestRequest(t *testing.T) {
	var got model.Name
	p := New("", func(_ context.Context, pod model.Name, _ string, _ []netip.Addr) error {
		got = pod
		return nil
	}, slog.New(slog.DiscardHandler))
	s := &session{plugin: p}
	raw, err := proto.Marshal(&nriapi.StateChangeEvent{Pod: &nriapi.PodSandbox{Name: "a", Namespace: "ns"}}) // its field 2
	if err != nil {
		t.Fatal(err)
	}
	raw[0] = 1<<3 | 2 // field 1, as in RunPodSandboxRequest
	answer, err := s.methods().Methods["RunPodSandbox"](t.Context(), func(to any) error { return proto.Unmarshal(raw, to.(proto.Message)) })
	if _, is := answer.(*api.RunPodSandboxResponse); !is || err != nil || got != (model.Name{Namespace: "ns", Name: "a"}) {
		t.Errorf("held %v, answered %T, %v", got, answer, err)
	}
}
