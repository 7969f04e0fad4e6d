// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// newNetns returns a network namespace without a name, as the file that runtimes open.
func newNetns(t testing.TB) *os.File {
	t.Helper()
	var f *os.File
	nettest.New(t, "a pod").Do(t, "open the namespace", func() (err error) {
		f, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	t.Cleanup(func() { f.Close() })
	return f
}

// memBlocks are blocks in memory, with faults on demand.
type memBlocks struct {
	mu     sync.Mutex
	node   string
	blocks map[netip.Prefix]ipam.Block
	err    error
}

func (m *memBlocks) List(context.Context) ([]ipam.Block, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ipam.Block
	for _, b := range m.blocks {
		out = append(out, b)
	}
	return out, m.err
}

func (m *memBlocks) Claim(_ context.Context, cidr netip.Prefix, pool string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if _, ok := m.blocks[cidr]; ok {
		return ipam.ErrTaken
	}
	m.blocks[cidr] = ipam.Block{CIDR: cidr, Node: m.node, Pool: pool}
	return nil
}

func (m *memBlocks) Release(_ context.Context, cidr netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blocks, cidr)
	return m.err
}

type fakePods struct {
	mu   sync.Mutex
	pods map[model.Name]Pod
	gone map[model.Name]bool
}

func (f *fakePods) PodForAdd(_ context.Context, name model.Name, uid string) (Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone[name] {
		return Pod{}, ErrPodNotFound
	}
	p := f.pods[name]
	p.Name, p.UID = name, uid
	return p, nil
}

func (f *fakePods) PodLives(name model.Name, _ string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.gone[name]
}

// fakeEnforcer keeps what is attached, and insists on the contract: one endpoint an interface
// index, and an interface that is down before it is enforced.
type fakeEnforcer struct {
	mu       sync.Mutex
	attached map[netip.Addr]model.LocalEndpoint
	host     *netlink.Handle
	fail     error
	broken   []string
	attach   func()
}

func (f *fakeEnforcer) Attach(_ context.Context, ep model.LocalEndpoint) error {
	if f.attach != nil {
		f.attach()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	l, err := f.host.LinkByIndex(ep.IfIndex)
	if err != nil || l.Attrs().Name != ep.Interface {
		f.broken = append(f.broken, fmt.Sprintf("attach to %s: %v", ep.Interface, err))
	} else if l.Attrs().Flags&net.FlagUp != 0 {
		f.broken = append(f.broken, ep.Interface+" was up before it was enforced")
	}
	for _, a := range ep.Addrs {
		if have, ok := f.attached[a]; ok && have.ContainerID != ep.ContainerID {
			f.broken = append(f.broken, fmt.Sprintf("%s given to %s and %s", a, have.ContainerID, ep.ContainerID))
		}
		f.attached[a] = ep
	}
	return nil
}

func (f *fakeEnforcer) Detach(_ context.Context, ep model.LocalEndpoint) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l, err := f.host.LinkByIndex(ep.IfIndex); err == nil && l.Attrs().Flags&net.FlagUp != 0 {
		f.broken = append(f.broken, ep.Interface+" was up when it was no longer enforced")
	}
	for _, a := range ep.Addrs {
		if f.attached[a].ContainerID == ep.ContainerID {
			delete(f.attached, a)
		}
	}
	return nil
}

func (f *fakeEnforcer) Check(_ context.Context, ep model.LocalEndpoint) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range ep.Addrs {
		if f.attached[a].IfIndex != ep.IfIndex {
			return errors.New("not attached")
		}
	}
	return nil
}

// world is a host of its own with a server.
type world struct {
	t        testing.TB
	s        *Server
	host     *os.File
	link     *netlink.Handle
	dir      string
	blocks   *memBlocks
	pods     *fakePods
	enforcer *fakeEnforcer
	ready    error
	settings Settings
	// families are those that request asks for.
	v4, v6 bool
}

var testPool = model.Pool{Name: "default", CIDR: netip.MustParsePrefix("10.65.0.0/16"), BlockBits: 26, Workload: true}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, host: newNetns(t), dir: t.TempDir(), settings: testSettings, v4: true,
		blocks: &memBlocks{node: "n1", blocks: map[netip.Prefix]ipam.Block{}},
		pods:   &fakePods{pods: map[model.Name]Pod{}, gone: map[model.Name]bool{}}}
	link, err := netlink.NewHandleAt(netns.NsHandle(int(w.host.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	w.link = link
	w.enforcer = &fakeEnforcer{attached: map[netip.Addr]model.LocalEndpoint{}, host: link}
	w.start()
	t.Cleanup(func() {
		for _, b := range w.enforcer.broken {
			t.Error(b)
		}
	})
	return w
}

var testPool6 = model.Pool{Name: "six", CIDR: netip.MustParsePrefix("fd00:65::/48"), BlockBits: 122, Workload: true}

var testSettings = Settings{InterfacePrefix: "cali", MTU: 1450, RouteProtocol: 3, IPv6: true}

// start opens a server over what is on disk and in the host's namespace: the agent's start.
func (w *world) start() {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	a, err := ipam.Open(w.dir, "n1", w.blocks, ipam.Options{}, log)
	if err != nil {
		w.t.Fatal(err)
	}
	a.Configure(ipam.Config{Pools: []model.Pool{testPool, testPool6}})
	ns := netns.NsHandle(int(w.host.Fd()))
	s, err := New(Options{IPAM: a, Pods: w.pods, Enforcer: w.enforcer, Log: log, HostNetns: &ns,
		Settings: func() Settings { return w.settings },
		Ready:    func() error { return w.ready }})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	w.s = s
}

func request(command, pod, container string) wire.Request {
	return wire.Request{Version: wire.Version, Command: command, Network: "weir", ContainerID: container, IfName: "eth0",
		Netns: "/run/netns/" + container, Namespace: "ns", Pod: pod, UID: "uid-" + pod, IPv4: true}
}

func ctx10(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func (w *world) request(command, pod, container string) wire.Request {
	req := request(command, pod, container)
	req.IPv4, req.IPv6 = w.v4, w.v6
	return req
}

func (w *world) add(pod, container string, ns *os.File) *wire.Result {
	w.t.Helper()
	res, _, err := w.s.Handle(ctx10(w.t), w.request("ADD", pod, container), ns)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

func (w *world) do(command, pod, container string, ns *os.File) *wire.Error {
	_, _, err := w.s.Handle(ctx10(w.t), w.request(command, pod, container), ns)
	return err
}

func (w *world) links() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	links, err := w.link.LinkList()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			out[l.Attrs().Name] = l.Attrs().Alias
		}
	}
	return out
}

// empty fails when anything of a pod is left.
func (w *world) empty() {
	w.t.Helper()
	if l := w.links(); len(l) > 0 {
		w.t.Errorf("interfaces left: %v", l)
	}
	if r := w.s.IPAM.Records(); len(r) > 0 {
		w.t.Errorf("allocations left: %v", r)
	}
	if len(w.enforcer.attached) > 0 {
		w.t.Errorf("endpoints left in the data plane: %v", w.enforcer.attached)
	}
}

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
