// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/wireguard/process"
)

// Options say where a Manager works: in the network namespace of the process.
type Options struct {
	Log              *slog.Logger
	StateDir, RunDir string
	// Ready is called when a device is ready for peers, with the public keys of all that were.
	Ready func(model.WireGuardKeys)
}

// Manager makes what encrypts equal to a state. All methods are safe for concurrent use.
type Manager struct {
	opts Options
	log  *slog.Logger
	file *statefile.File[memory]
	more chan struct{} // there are other silent peers

	mu     sync.Mutex
	memory memory
	guard  guard // as written last
	known  bool  // the guard in the kernel is guard
	began  bool  // devices were looked at
	keys   model.WireGuardKeys
	next   model.WireGuardKeys       // those that this node is about to have
	silent map[wgtypes.Key]time.Time // next keys of peers, and since when they are known
	wanted [2]nodestate.WireGuard    // of the last state
	errs   [2]error                  // what is not as it should be, by family
	by     string                    // InKernel or InUserSpace, of the last device
}

// memory is what a Manager leaves to the next: names of devices that it made or had made.
type memory struct {
	Interfaces []string `json:"interfaces,omitempty"`
}

// New returns a Manager that has written nothing yet.
func New(o Options) *Manager {
	m := &Manager{opts: o, log: o.Log, file: statefile.New[memory](filepath.Join(Folder(o.StateDir), "devices.json"), o.Log), more: make(chan struct{}, 1)}
	m.memory, m.keys, m.next = m.file.Load(), OwnKeys(o.StateDir), nextKeys(o.StateDir)
	return m
}

// Before makes room for a state that a data plane is to apply next: what it will send through the
// tunnel is guarded, routed to the device, and encrypted. What was guarded before still is. The
// error says that the guard is not in place: the data plane must not apply the state.
func (m *Manager) Before(s *nodestate.State) error { return m.apply(s, true) }

// After removes what the data plane, which applied the state, does not need any more.
func (m *Manager) After(s *nodestate.State) error { return m.apply(s, false) }

func (m *Manager) apply(s *nodestate.State, adding bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !s.WireGuard4.On() && !s.WireGuard6.On() && len(m.memory.Interfaces) == 0 && m.guard.none() {
		return nil // as it always was
	}
	if err := m.writeGuard(s, adding); err != nil {
		return err
	}
	changed := false
	for i, w := range []nodestate.WireGuard{s.WireGuard4, s.WireGuard6} {
		// A device is there until a data plane sends nothing by it any more.
		if (w.On() || !adding) && !w.Equal(&m.wanted[i]) {
			m.wanted[i], changed = w, true
		}
	}
	if adding && !m.began || changed || !adding && len(m.memory.Interfaces) > 0 && !m.wanted[0].On() && !m.wanted[1].On() {
		m.began = true
		m.reconcile(s.Settings.Tunnel.Port)
	}
	return nil
}

// writeGuard writes the guard of a state, with that of before while adding.
func (m *Manager) writeGuard(s *nodestate.State, adding bool) error {
	g := guard{port: s.Settings.Tunnel.Port}
	for i, w := range []*nodestate.WireGuard{&s.WireGuard4, &s.WireGuard6} {
		g.interfaces[i], g.nodes[i] = w.Interface, guarded(w.Peers)
		g.hosts[i] = hostGuard{own: w.Hosts.Own, outer: w.Port, clear: w.Hosts.Clear}
		if adding && m.known && m.guard.port == g.port && m.guard.interfaces[i] != "" {
			if g.interfaces[i] == "" {
				g.interfaces[i] = m.guard.interfaces[i]
			}
			g.nodes[i] = merged(m.guard.nodes[i], g.nodes[i])
			if !g.hosts[i].own.IsValid() {
				g.hosts[i] = m.guard.hosts[i]
			}
		}
	}
	if m.known && m.guard.equal(&g) {
		return nil
	}
	if err := g.write(); err != nil {
		return err
	}
	m.guard, m.known = g, true
	return nil
}

// reconcile makes devices and routes equal to what is wanted. What cannot be done is remembered:
// nothing goes in clear for it, and Run tries again.
func (m *Manager) reconcile(port uint16) {
	names := []string{}
	var spec process.Spec
	for i := range m.wanted {
		if w := &m.wanted[i]; w.On() {
			names = append(names, w.Interface)
			spec.Devices = append(spec.Devices, process.Device{Name: w.Interface, MTU: w.MTU})
		}
	}
	if len(names) == 2 && names[0] == names[1] {
		m.errs[1] = fmt.Errorf("wireguardInterfaceName and wireguardInterfaceNameV6 are both %s", names[0])
		names, spec.Devices, m.wanted[1] = names[:1], spec.Devices[:1], nodestate.WireGuard{}
	}
	var silent []wgtypes.Key
	specErr := process.WriteSpec(m.opts.RunDir, spec)
	for i := range m.wanted {
		w := &m.wanted[i]
		if !w.On() {
			_, err := ensureRule(i == 1, 0, 0)
			m.errs[i] = errors.Join(ensureHostRules(i == 1, nil, false), err, ensureRoutes(i == 1, 0, nil))
			continue
		}
		of, err := m.ensure(w, i == 1, port)
		silent, err = append(silent, of...), errors.Join(err, specErr)
		if err != nil && (m.errs[i] == nil || m.errs[i].Error() != err.Error()) {
			m.log.Error("WireGuard is not as it should be; trying again, and nothing goes in clear to nodes that had keys", "device", w.Interface, "error", err)
		} else if err == nil && m.errs[i] != nil {
			m.log.Info("WireGuard is as it should be", "device", w.Interface)
		}
		m.errs[i] = err
	}
	m.noteSilent(silent)
	m.forget(names)
}

// forget removes devices that are not wanted any more, and remembers those that are.
func (m *Manager) forget(names []string) {
	left := slices.Clone(names)
	for _, name := range m.memory.Interfaces {
		if slices.Contains(names, name) {
			continue
		}
		if err := remove(name); err != nil {
			m.log.Error("a device of WireGuard that is not wanted stays; trying again", "device", name, "error", err)
			left = append(left, name)
		}
	}
	if !slices.Equal(left, m.memory.Interfaces) && m.file.Save(memory{left}) == nil {
		m.memory.Interfaces = left
	}
}

// ensure makes the device of a family, its routes and its peers, and returns the silent ones.
func (m *Manager) ensure(w *nodestate.WireGuard, six bool, port uint16) (silent []wgtypes.Key, err error) {
	if w.MTU == 0 {
		return nil, errors.New("the MTU of the uplink is not known yet")
	}
	l, by, err := ensureDevice(w.Interface, w.MTU)
	if by != "" {
		m.by = by
	}
	if err != nil {
		return silent, err
	}
	key, err := loadKey(Folder(m.opts.StateDir), six)
	if err != nil {
		return silent, err
	}
	index := l.Attrs().Index
	if silent, err = configure(w.Interface, key, w); err != nil {
		return silent, err
	}
	if err := open(l, six); err != nil {
		return silent, err
	}
	if err := ensureRoutes(six, index, guarded(w.Peers)); err != nil {
		return silent, err
	}
	made, err := ensureRule(six, w.RulePriority, port)
	if err = errors.Join(err, ensureHostRules(six, hostRules(six, w), made)); err != nil {
		return silent, err
	}
	if public := publicKey(key); m.keys.Of(six) != public {
		m.keys = m.keys.With(six, public)
		if m.opts.Ready != nil {
			m.opts.Ready(m.keys)
		}
	}
	return silent, nil
}

// OwnKeys returns the public keys that this node had when the agent ended: what is encrypted by
// them goes on while the agent starts.
func OwnKeys(stateDir string) (out model.WireGuardKeys) {
	m := statefile.New[memory](filepath.Join(Folder(stateDir), "devices.json"), slog.New(slog.DiscardHandler)).Load()
	if len(m.Interfaces) == 0 {
		return out
	}
	for _, six := range []bool{false, true} {
		if key, err := readKey(Folder(stateDir), six); err == nil {
			out = out.With(six, publicKey(key))
		}
	}
	return out
}

// checkEvery is between two looks at devices: a process of wireguard-go that starts again has its
// peers within that time.
const checkEvery = time.Second

// Run looks after what was written until ctx ends: a process of wireguard-go may come, go and start
// again, and somebody may delete a route.
func (m *Manager) Run(ctx context.Context, tunnelPort func() uint16) error {
	links, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: func(error) {}}); err != nil {
		links = nil // the ticks are left
	}
	tick, look := time.NewTicker(checkEvery), time.NewTicker(lookEvery)
	defer tick.Stop()
	defer look.Stop()
	for looking := true; ; {
		if now := m.looking(); now && !looking {
			look.Reset(lookEvery)
			looking = true
		} else if !now && looking {
			look.Stop()
			looking = false
		}
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-links:
			if !ok {
				links = nil
			}
			if !ok || !m.concerns(u.Attrs().Name) {
				continue
			}
		case <-m.more:
			continue
		case <-tick.C:
		case <-look.C:
			if !m.heard() {
				continue
			}
		}
		m.check(tunnelPort())
	}
}

// check makes what is not as it should be so, or tries again.
func (m *Manager) check(tunnelPort uint16) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted[0].On() || m.wanted[1].On() {
		m.reconcile(tunnelPort)
	}
}

func (m *Manager) concerns(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return name != "" && (m.wanted[0].Interface == name || m.wanted[1].Interface == name)
}

// Status is how a node encrypts.
type Status struct {
	Keys  model.WireGuardKeys
	Next  model.WireGuardKeys // that it is about to have
	By    string
	Peers int
	Clear []string // nodes that are sent packets in clear, sorted
	Errs  []error  // what is not as it should be
}

// Status says how it is now; nil where WireGuard is off.
func (m *Manager) Status() *Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.wanted[0].On() && !m.wanted[1].On() {
		return nil
	}
	out := &Status{By: m.by}
	peers, plain := map[string]bool{}, map[string]bool{}
	for i := range m.wanted {
		w := &m.wanted[i]
		if !w.On() {
			continue
		}
		out.Keys = out.Keys.With(i == 1, m.keys.Of(i == 1))
		out.Next = out.Next.With(i == 1, m.next.Of(i == 1))
		for _, p := range w.Peers {
			peers[p.Node] = true
		}
		for _, name := range w.Clear {
			plain[name] = true
		}
		if m.errs[i] != nil {
			out.Errs = append(out.Errs, m.errs[i])
		}
	}
	out.Peers, out.Clear = len(peers), slices.Sorted(maps.Keys(plain))
	return out
}

// merged returns the addresses of both, sorted.
func merged(a, b []netip.Addr) []netip.Addr {
	all := slices.Concat(a, b)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
