// SPDX-License-Identifier: Apache-2.0

// Package vmaddr keeps the addresses of virtual machines of KubeVirt at this node. The controller
// says, in the block of such an address, which pods may have it; this package tells the CNI server,
// makes this node that of the address once a machine that is moved here announces itself
// (listen.go), and has the host's route to the address there while this is its node.
package vmaddr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
)

const (
	// grantWithin is how long a pod waits for the controller.
	grantWithin = 15 * time.Second
	// again is the time between two tries, and lookEvery that between two looks at the routes.
	again     = time.Second
	lookEvery = 30 * time.Second
)

// Config is what a Machines needs.
type Config struct {
	Node   string
	Blocks client.Resource[weirv1.IPAMBlock]
	// SetReachable makes the host's route to an address of an endpoint, or removes it.
	SetReachable func(ep model.LocalEndpoint, a netip.Addr, reachable bool) error
	// Arrived is called when a machine has announced itself, before this node takes its addresses:
	// its flows come first.
	Arrived func(ctx context.Context, addrs []netip.Addr)
	Log     *slog.Logger
}

// Machines are the virtual machines of the cluster, as far as addresses go.
type Machines struct {
	cfg Config
	due chan struct{} // for Run

	mu      sync.Mutex
	enabled bool
	blocks  map[netip.Addr]*model.Block
	local   map[netip.Addr]*model.LocalEndpoint // of this node, with an address in blocks
	changed chan struct{}                       // closed when any of these are others
}

// New returns the Machines of a node. Note tells it of the cluster.
func New(cfg Config) *Machines {
	return &Machines{cfg: cfg, due: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Note is called when blocks or endpoints may be others; enabled says whether machines keep their
// addresses.
func (m *Machines) Note(c *model.Cluster, enabled bool) {
	blocks, local := cluster.MachinesOf(c.Blocks), map[netip.Addr]*model.LocalEndpoint{}
	for a := range blocks {
		if ep := c.Local.Endpoints[a]; ep != nil {
			local[a] = ep
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.enabled == enabled && maps.Equal(m.blocks, blocks) && maps.Equal(m.local, local) {
		return
	}
	m.enabled, m.blocks, m.local = enabled, blocks, local
	close(m.changed)
	m.changed = make(chan struct{})
	select {
	case m.due <- struct{}{}:
	default:
	}
}

// Kept says which machine has an address, "" when none does.
func (m *Machines) Kept(a netip.Addr) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.blocks[a]; b != nil {
		return "virtual machine " + b.VM.Name.String() + " keeps it"
	}
	return ""
}

// EndpointOf returns this node's endpoint of the address of a machine that is at this node, or is
// moved to it; nil = it is neither.
func (m *Machines) EndpointOf(a netip.Addr) *model.LocalEndpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.blocks[a]; b == nil || b.Node != m.cfg.Node && b.VM.TargetNode != m.cfg.Node {
		return nil
	}
	return m.local[a]
}

// StandsBy implements cni.Machines.
func (m *Machines) StandsBy(a netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.blocks[a]
	return b != nil && b.Node != m.cfg.Node
}

// Granted implements cni.Machines.
func (m *Machines) Granted(ctx context.Context, pod cni.Pod) (cni.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, grantWithin)
	defer cancel()
	for {
		m.mu.Lock()
		grant, waits := m.grant(pod)
		changed := m.changed
		m.mu.Unlock()
		if !waits {
			return grant, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return cni.Grant{}, errors.New("it says that it is of a virtual machine that keeps its address, and the controller has not confirmed that: KubeVirt does not name this pod as one of the machine's, or weir-controller does not run")
		}
	}
}

// grant returns what a pod has, and whether it has to wait for that: all addresses of a machine are
// given at once. Its labels have it wait, and nothing else. mu is held.
func (m *Machines) grant(pod cni.Pod) (out cni.Grant, waits bool) {
	var of model.Name
	for _, b := range m.blocks {
		if b.VM.IsFor(pod.UID) {
			of = b.VM.Name
		}
	}
	said := model.Name{Namespace: pod.Name.Namespace, Name: pod.Labels[model.LabelKubeVirtName]}
	if of == (model.Name{}) {
		if pod.Labels[model.LabelKubeVirt] != model.KubeVirtLauncher {
			return out, false
		}
		known := slices.ContainsFunc(slices.Collect(maps.Values(m.blocks)), func(b *model.Block) bool { return b.VM.Name == said })
		return out, known || m.enabled && pod.Labels[model.LabelKubeVirtMigration] != ""
	}
	for a, b := range m.blocks {
		if b.VM.Name != of {
			continue
		}
		if !b.VM.IsFor(pod.UID) {
			return cni.Grant{}, true
		}
		out.Addrs, out.MAC = append(out.Addrs, a), b.VM.MAC
	}
	slices.SortFunc(out.Addrs, netip.Addr.Compare)
	return out, false
}

// endpoint is an address at an interface.
type endpoint struct {
	addr    netip.Addr
	ifindex int
}

// Run works until ctx ends.
func (m *Machines) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	reachable := map[endpoint]bool{} // as the routes are
	listening := map[int]context.CancelFunc{}
	var listeners sync.WaitGroup
	defer listeners.Wait()
	defer func() {
		for _, end := range listening {
			end()
		}
	}()
	for {
		var retry <-chan time.Time
		if !m.setRoutes(reachable) {
			retry = time.After(again)
		}
		waiting := m.waiting()
		for index, end := range listening {
			if _, is := waiting[index]; !is {
				end()
				delete(listening, index)
			}
		}
		for index, w := range waiting {
			if listening[index] == nil {
				c, end := context.WithCancel(ctx)
				listening[index] = end
				listeners.Go(func() { m.follow(c, index, w) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.due:
		case <-retry:
		case <-tick.C:
			clear(reachable)
		}
	}
}

// setRoutes makes routes what they should be, and reports whether it could.
func (m *Machines) setRoutes(done map[endpoint]bool) bool {
	m.mu.Lock()
	blocks, local := m.blocks, m.local
	m.mu.Unlock()
	ok := true
	for e := range done {
		if ep := local[e.addr]; ep == nil || ep.IfIndex != e.ifindex {
			delete(done, e)
		}
	}
	for a, ep := range local {
		e, want := endpoint{a, ep.IfIndex}, blocks[a].Node == m.cfg.Node
		if is, known := done[e]; known && is == want {
			continue
		}
		if err := m.cfg.SetReachable(*ep, a, want); err != nil {
			m.cfg.Log.Error("the route to an address of a virtual machine is not as it should be", "address", a.String(), "here", want, "error", err)
			ok = false
			continue
		}
		done[e] = want
	}
	return ok
}

// waiting returns the machines that are moved to this node and are not here yet, by the index of
// the interface by which they will announce themselves.
func (m *Machines) waiting() map[int]announced {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[int]announced{}
	for a, ep := range m.local {
		if b := m.blocks[a]; b.Node != m.cfg.Node && b.VM.TargetNode == m.cfg.Node {
			out[ep.IfIndex] = announced{of: b.VM.Name, mac: b.VM.MAC, addrs: append(out[ep.IfIndex].addrs, a)}
		}
	}
	return out
}

// follow waits until a machine announces itself, and makes this node that of its addresses.
func (m *Machines) follow(ctx context.Context, ifindex int, w announced) {
	for ctx.Err() == nil {
		err := w.listen(ctx, ifindex)
		if err == nil {
			m.cfg.Arrived(ctx, w.addrs)
			err = m.take(ctx, w)
		}
		if err == nil {
			m.cfg.Log.Info("a virtual machine has come", "machine", w.of.String(), "addresses", fmt.Sprint(w.addrs))
			return
		}
		if ctx.Err() == nil {
			m.cfg.Log.Error("a virtual machine that comes to this node is not reached here yet", "machine", w.of.String(), "error", err)
			_ = sleep.For(ctx, again) // the loop looks whether ctx has ended
		}
	}
}

// take makes this node that of the addresses of a machine, as far as the controller lets it.
func (m *Machines) take(ctx context.Context, w announced) error {
	var errs []error
	for _, a := range w.addrs {
		errs = append(errs, m.takeOne(ctx, weirv1.BlockName(netip.PrefixFrom(a, a.BitLen()))))
	}
	return errors.Join(errs...)
}

func (m *Machines) takeOne(ctx context.Context, name string) error {
	for {
		b, err := m.cfg.Blocks.Get(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case b.Spec.Node == m.cfg.Node:
			return nil
		case b.Spec.VirtualMachine == nil || b.Spec.VirtualMachine.Target == nil || b.Spec.VirtualMachine.Target.Node != m.cfg.Node:
			return nil // the migration was given up
		}
		b.Spec.Node = m.cfg.Node
		if _, err = m.cfg.Blocks.Update(ctx, b); !apierrors.IsConflict(err) {
			return err
		}
	}
}
