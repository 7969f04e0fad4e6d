// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/weir-net/weir/internal/cni/plugin"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
)

// TestMain lets the test binary be the plugin, and an agent that is killed.
func TestMain(m *testing.M) {
	if os.Getenv("WEIR_CNI_TEST_PLUGIN") != "" {
		if limit, err := time.ParseDuration(os.Getenv("WEIR_CNI_TEST_START_TIMEOUT")); err == nil {
			plugin.StartTimeout = limit
		}
		os.Exit(plugin.Main("plugin under test"))
	}
	os.Exit(m.Run())
}

// TestKill kills an agent at every step of an ADD and of a DEL. The next agent finds a state from
// which the runtime's DEL, or a new sandbox, leads to a clean end; without either, reconciliation
// does.
func TestKill(t *testing.T) {
	if dir := os.Getenv("WEIR_CNI_KILL_DIR"); dir != "" {
		killedAgent(t, dir, os.Getenv("WEIR_CNI_KILL_STEP"))
		return
	}
	steps := []string{"add:before-allocate", "add:between-addresses", "add:after-allocate", "add:after-veth", "add:after-configure", "add:after-attach", "add:done",
		"del:before-detach", "del:after-detach", "del:after-link", "del:between-addresses", "del:done"}
	for _, at := range steps {
		for _, next := range []string{"del", "new sandbox", "same sandbox", "reconcile"} {
			t.Run(at+"/"+next, func(t *testing.T) {
				w := newWorld(t)
				w.v6 = true
				pod := newNetns(t)
				cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
				cmd.ExtraFiles = []*os.File{w.host, pod}
				cmd.Env = append(os.Environ(), "WEIR_CNI_KILL_DIR="+w.dir, "WEIR_CNI_KILL_STEP="+at)
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the agent was not killed at %s: %v\n%s", at, err, out)
				}
				w.afterKill(next, pod)
			})
		}
	}
}

func (w *world) afterKill(next string, pod *os.File) {
	t := w.t
	w.start()
	eps, err := w.s.Restore(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, ep := range eps {
		if l, err := w.link.LinkByIndex(ep.IfIndex); err != nil || l.Attrs().Name != ep.Interface {
			t.Errorf("restored %+v: %v", ep, err)
		}
		for _, a := range ep.Addrs {
			w.enforcer.attached[a] = ep
		}
	}
	switch next {
	case "new sandbox":
		w.add("p", "c2", newNetns(t))
		if got := w.consistent("p"); got != "c2" {
			t.Error("sandbox", got)
		}
		if err := w.do("DEL", "p", "c1", nil); err != nil { // the runtime's late DEL
			t.Error(err)
		}
		if got := w.consistent("p"); got != "c2" {
			t.Error("the old sandbox's DEL took the new one's interface")
		}
		w.do("DEL", "p", "c2", nil)
	case "same sandbox":
		w.add("p", "c1", pod)
		if err := w.do("CHECK", "p", "c1", pod); err != nil {
			t.Error(err)
		}
		w.do("DEL", "p", "c1", nil)
	case "del":
		if err := w.do("DEL", "p", "c1", nil); err != nil {
			t.Error(err)
		}
	case "reconcile":
		w.pods.gone[model.Name{Namespace: "ns", Name: "p"}] = true
		for name := range w.links() { // the end of the sandbox's namespace takes the pair with it
			l, err := w.link.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			w.link.LinkDel(l)
		}
		for _, d := range []time.Duration{0, time.Hour} {
			if err := w.s.Reconcile(context.Background(), time.Now().Add(d)); err != nil {
				t.Error(err)
			}
		}
	}
	w.empty()
	for _, r := range w.enforcer.broken {
		t.Error(r)
	}
}

// killedAgent runs in a process of its own: descriptor 3 is the host's namespace, 4 the pod's.
func killedAgent(t *testing.T, dir, at string) {
	step = func(s string) {
		if s == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	// An allocator looks at the clock before each address that it takes, and after each that it
	// gives back.
	doing := "add"
	now := func() time.Time {
		if files, _ := filepath.Glob(dir + "/[0-9a-f]*"); len(files) == 1 {
			step(doing + ":between-addresses")
		}
		return time.Now()
	}
	host := netns.NsHandle(3)
	link, err := netlink.NewHandleAt(host)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	blocks := &memBlocks{node: "n1", blocks: map[prefix]ipam.Block{}}
	a, err := ipam.Open(dir, "n1", blocks, ipam.Options{Now: now}, log)
	if err != nil {
		t.Fatal(err)
	}
	a.Configure(ipam.Config{Pools: []model.Pool{testPool, testPool6}})
	s, err := New(Options{IPAM: a, Pods: &fakePods{}, Enforcer: &fakeEnforcer{attached: map[addr]model.LocalEndpoint{}, host: link},
		Settings: func() Settings { return testSettings },
		Ready:    func() error { return nil }, Log: log, HostNetns: &host})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	req := request("ADD", "p", "c1")
	req.IPv6 = true
	if _, _, err := s.Handle(ctx, req, os.NewFile(4, "pod")); err != nil {
		t.Fatal(err)
	}
	doing = "del"
	if _, _, err := s.Handle(ctx, request("DEL", "p", "c1"), nil); err != nil {
		t.Fatal(err)
	}
	fmt.Println("not killed at", at, strings.Repeat("!", 3))
}

type (
	addr   = netip.Addr
	prefix = netip.Prefix
)
