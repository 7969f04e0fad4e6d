// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/nodestate"
)

// openIPIP makes the device that a state with IP in IP needs, and returns the state that is in
// force: where there is no device, one in which VXLAN has its place. A kernel that has none is
// asked once.
func (d *Driver) openIPIP(s *nodestate.State) *nodestate.State {
	d.noIPIP = ""
	if !s.Settings.IPIP.Accept || d.opts.NoMachine {
		return s
	}
	err := d.ipipLacks
	if err == nil && !d.left {
		if err = d.network.OpenIPIP(s); errors.Is(err, hostnet.ErrNoIPIP) {
			d.ipipLacks = err
		}
	}
	if err == nil {
		return s
	}
	d.noIPIP = err.Error()
	return withoutIPIP(s)
}

// LooksForIPIP asks the kernel for the device that a state with IP in IP needs, before the driver
// has the state: nil = it is there, or not needed. Only ErrNoIPIP says that there is none.
func (d *Driver) LooksForIPIP(s *nodestate.State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.openIPIP(s)
	return d.ipipLacks
}

// withoutIPIP is a state in which VXLAN has the place of IP in IP.
func withoutIPIP(s *nodestate.State) *nodestate.State {
	out := *s
	out.Settings.IPIP = nodestate.IPIP{Replaced: true}
	out.Routes, out.Addrs = withoutFlag(s.Routes, func(r *nodestate.Route) *bool { return &r.IPIP }), withoutFlag(s.Addrs, func(a *nodestate.Addr) *bool { return &a.IPIP })
	return &out
}

// withoutFlag is a table in which no entry has a flag: the same one where none had it.
func withoutFlag[K comparable, V any](have map[K]V, flag func(*V) *bool) map[K]V {
	out := make(map[K]V, len(have))
	changed := false
	for k, v := range have {
		changed = changed || *flag(&v)
		*flag(&v) = false
		out[k] = v
	}
	if !changed {
		return have
	}
	return out
}
