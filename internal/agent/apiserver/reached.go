// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// maxReached bounds the addresses that are kept: a name may lead to ever new ones.
const maxReached = 16

// Reached keeps at which addresses the agent got a connection to an API server: that of the
// kubeconfig or of the pod's environment, which may be a load balancer's that the cluster does not
// know of. No Service takes them.
type Reached struct {
	mu      sync.Mutex
	at      []netip.AddrPort // the latest last
	changed func()           // may be nil
}

// Remember returns a dial function that remembers.
func (r *Reached) Remember(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			r.note(addr, conn.RemoteAddr())
		}
		return conn, err
	}
}

// note keeps the address that was asked for, unless it is a name, and the one that answered.
func (r *Reached) note(asked string, answered net.Addr) {
	var found []netip.AddrPort
	if at, err := netip.ParseAddrPort(asked); err == nil {
		found = append(found, at)
	}
	if tcp, ok := answered.(*net.TCPAddr); ok {
		found = append(found, tcp.AddrPort())
	}
	r.mu.Lock()
	grown := false
	for _, at := range found {
		at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
		if !slices.Contains(r.at, at) {
			r.at, grown = append(r.at, at), true
		}
	}
	if n := len(r.at) - maxReached; n > 0 {
		r.at = slices.Delete(slices.Clone(r.at), 0, n)
	}
	changed := r.changed
	r.mu.Unlock()
	if grown && changed != nil {
		changed()
	}
}

// Addrs returns them, sorted.
func (r *Reached) Addrs() []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(slices.Values(r.at), netip.AddrPort.Compare)
}

// OnChange has f called when addresses were added, in a goroutine of its own.
func (r *Reached) OnChange(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = func() { go f() }
}
