// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/weir-net/weir/internal/model"
)

// ErrNoKey: a node that does not encrypt, or not yet, has no key that could be changed.
var ErrNoKey = errors.New("this node has no key of WireGuard")

// Prepare makes the next private keys of a node, in the place of these public ones; those of the
// families whose key is another one stay. They are used when Switch says so: until then other nodes
// are to learn of them by Status.
func (m *Manager) Prepare(instead model.WireGuardKeys) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.wanted {
		six := i == 1
		k := m.keys.Of(six)
		if k == (model.WireGuardKey{}) || !m.wanted[i].On() || instead.Of(six) != k || m.next.Of(six) != (model.WireGuardKey{}) {
			continue
		}
		key, err := newKey(nextKeyFile(Folder(m.opts.StateDir), six))
		if err != nil {
			return err
		}
		m.next = m.next.With(six, publicKey(key))
		m.log.Info("this node is about to change its key of WireGuard", "key", k, "next", m.next.Of(six))
	}
	return nil
}

// Switch has the node use its next keys, if they are these.
func (m *Manager) Switch(next model.WireGuardKeys, tunnelPort uint16) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := Folder(m.opts.StateDir)
	for _, six := range []bool{false, true} {
		if k := m.next.Of(six); k == (model.WireGuardKey{}) || k != next.Of(six) {
			continue
		}
		if err := os.Rename(nextKeyFile(dir, six), keyFile(dir, six)); err != nil {
			if errors.Is(err, fs.ErrNotExist) { // somebody removed it: the node keeps its key
				m.next = m.next.With(six, model.WireGuardKey{})
			}
			return fmt.Errorf("changing the key of WireGuard: %w", err)
		}
		m.next = m.next.With(six, model.WireGuardKey{})
	}
	m.reconcile(tunnelPort)
	return errors.Join(m.errs[:]...)
}

const (
	// lookEvery is between two looks for handshakes of silent peers: what a node sends that changes
	// its key waits for that long.
	lookEvery = 20 * time.Millisecond
	// lookFor is for how long a node looks so often: one that publishes its next key is about to
	// have it. Later it looks every checkEvery, and others learn of the change by the status.
	lookFor = time.Minute
)

// noteSilent notes the silent peers of all devices.
func (m *Manager) noteSilent(keys []wgtypes.Key) {
	since := map[wgtypes.Key]time.Time{}
	for _, k := range keys {
		if since[k] = m.silent[k]; !since[k].IsZero() {
			continue
		}
		since[k] = time.Now()
		select {
		case m.more <- struct{}{}:
		default:
		}
	}
	m.silent = since
}

// looking reports whether to look every lookEvery.
func (m *Manager) looking() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, since := range m.silent {
		if time.Since(since) < lookFor {
			return true
		}
	}
	return false
}

// heard reports whether a silent peer has begun a handshake.
func (m *Manager) heard() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.silent) == 0 {
		return false
	}
	c, err := wgctrl.New()
	if err != nil {
		return false // the next check says why
	}
	defer c.Close()
	for i := range m.wanted {
		if !m.wanted[i].On() {
			continue
		}
		d, err := c.Device(m.wanted[i].Interface)
		if err != nil {
			continue
		}
		for j := range d.Peers {
			if p := &d.Peers[j]; isSilent(p) && p.ReceiveBytes > 0 {
				return true
			}
		}
	}
	return false
}
