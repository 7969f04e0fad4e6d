// SPDX-License-Identifier: Apache-2.0

// Package cni answers the CNI plugin in the agent: it gives a pod its address, makes its interface,
// and answers only when the data plane enforces it. What it did is on disk (package ipam) and in
// the interface's alias, so that a restart finds every endpoint again.
package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
)

// ErrPodNotFound is what Pods returns for a pod that the API does not have.
var ErrPodNotFound = errors.New("pod not found")

// Pod is what an ADD has to know of its pod.
type Pod struct {
	Name        model.Name
	UID         string
	Labels      map[string]string
	Annotations map[string]string
	// NamespaceAnnotations are used for pools when the pod has none of its own. May be nil.
	NamespaceAnnotations map[string]string
	// NamespaceLabels are those of the namespace, for the namespaceSelector of pools; nil = not
	// known yet.
	NamespaceLabels map[string]string
}

// Pods finds pods.
type Pods interface {
	// PodForAdd returns the pod. The API may know it a little earlier than the caller's view of it:
	// PodForAdd waits for it within ctx. uid may be empty, as old runtimes do not say it; otherwise
	// a pod with another uid is not the one. ErrPodNotFound when there is none.
	PodForAdd(ctx context.Context, name model.Name, uid string) (Pod, error)
	// PodLives reports whether the pod with that uid (any, when empty) exists, is on this node and
	// has not finished. When in doubt, true.
	PodLives(name model.Name, uid string) bool
}

// Enforcer is the data plane, as far as a pod's start and end are concerned.
type Enforcer interface {
	// Attach returns nil when the programs are attached to the endpoint's interface and all that is
	// desired for it is in the kernel. The interface is down until then. To attach twice is fine.
	Attach(ctx context.Context, ep model.LocalEndpoint) error
	// Detach forgets the endpoint; the interface goes afterwards. An unknown endpoint is fine.
	Detach(ctx context.Context, ep model.LocalEndpoint) error
	// Check returns an error that says what is missing for the endpoint to be enforced.
	Check(ctx context.Context, ep model.LocalEndpoint) error
}

// Machines knows the addresses of virtual machines, which go with them from pod to pod.
type Machines interface {
	// Granted returns what a pod has because a virtual machine runs in it, or is moved to it;
	// nothing when it is a pod as any other. It waits within ctx for the controller to say so.
	Granted(ctx context.Context, pod Pod) (Grant, error)
	// StandsBy reports whether an address is a virtual machine's that is on another node.
	StandsBy(netip.Addr) bool
}

// Grant is what a pod of a virtual machine has; the zero value is nothing.
type Grant struct {
	Addrs []netip.Addr
	MAC   [6]byte // zero = any
}

// Settings are the node's values for new interfaces.
type Settings struct {
	InterfacePrefix string // of host-side names; at most 4 bytes
	MTU             int    // bytes; 0 = not known yet, ADD is to be tried again
	RouteProtocol   int    // of the routes to pods (deviceRouteProtocol)
	IPv6            bool   // the data plane carries it
}

// LimitedError is a reason for not being ready under which pods that run already may lack
// connectivity (CNI error 51 instead of 50).
type LimitedError struct{ Reason string }

func (e *LimitedError) Error() string { return e.Reason }

// Options of a Server. All but Waits, Machines, HostNetns and Grace are required.
type Options struct {
	IPAM     *ipam.Allocator
	Pods     Pods
	Enforcer Enforcer
	Settings func() Settings
	// Ready returns nil when pods can be started, else what is missing.
	Ready func() error
	// Waits hears of pods that are not started because the server is not ready or the pod was not
	// found, and why; nil = nobody does. It returns at once.
	Waits func(pod model.Name, uid string, why error)
	// Machines knows the addresses of virtual machines; nil = there are none.
	Machines Machines
	Log      *slog.Logger
	// HostNetns is the host's network namespace; nil = that of the process.
	HostNetns *netns.NsHandle
	// Grace is how long an allocation without interface and pod is kept. Default 2 min.
	Grace time.Duration
}

// Server answers CNI calls.
type Server struct {
	Options
	host  *hostLinks
	locks keyLocks
	stale ipam.Stale
}

// New returns a server. Restore is called before the first Serve.
func New(o Options) (*Server, error) {
	host, err := openHost(o.HostNetns)
	if err != nil {
		return nil, fmt.Errorf("open netlink on the host: %w", err)
	}
	if o.Waits == nil {
		o.Waits = func(model.Name, string, error) {}
	}
	if o.Grace == 0 {
		o.Grace = 2 * time.Minute
	}
	s := &Server{Options: o, host: host, stale: ipam.Stale{Grace: o.Grace}}
	o.IPAM.UseInterfaces(s.hasInterface, s.routed)
	return s, nil
}

// Close lets go of the server's netlink sockets.
func (s *Server) Close() { s.host.close() }

// keyLocks are mutexes by name that exist while somebody wants them.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	held    chan struct{} // capacity 1
	waiters int
}

// lock takes a name's lock; the returned function frees it.
func (k *keyLocks) lock(ctx context.Context, name string) (func(), error) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[string]*keyLock{}
	}
	l := k.m[name]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		k.m[name] = l
	}
	l.waiters++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.waiters--; l.waiters == 0 {
			delete(k.m, name)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("another call for %s is still in progress: %w", name, ctx.Err())
	}
}

// lockBoth locks a container and then its pod: every call takes them in this order.
func (s *Server) lockBoth(ctx context.Context, container string, pod model.Name) (func(), error) {
	c, err := s.locks.lock(ctx, "container "+container)
	if err != nil {
		return nil, err
	}
	if pod.Name == "" {
		return c, nil
	}
	p, err := s.locks.lock(ctx, "pod "+pod.String())
	if err != nil {
		c()
		return nil, err
	}
	return func() { p(); c() }, nil
}

// endpoint makes the data plane's view of an interface from its records.
func endpoint(records []ipam.Record, ifindex int) model.LocalEndpoint {
	r := records[0]
	ep := model.LocalEndpoint{Pod: r.PodName(), ContainerID: r.ContainerID, Interface: r.HostInterface,
		IfIndex: ifindex, MAC: parseMAC(r.MAC), NetnsCookie: r.NetnsCookie}
	for _, r := range records {
		ep.Addrs = append(ep.Addrs, r.Address)
	}
	return ep
}

func refusal(code uint, format string, args ...any) *wire.Error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// asWire turns any error into one with a code.
func asWire(err error, code uint) *wire.Error {
	var w *wire.Error
	if errors.As(err, &w) {
		return w
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code = wire.CodeTryAgain
	}
	return &wire.Error{Code: code, Message: err.Error()}
}

// gateways are what pods use as their next hop; no interface has these addresses, a permanent
// neighbour entry makes them lead to the host side of the pod's interface.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// minMTU6 is the least MTU of a link with IPv6 (RFC 8200, section 5); the kernel has none on a
// smaller one.
const minMTU6 = 1280

func gatewayFor(a netip.Addr) netip.Addr {
	if a.Is4() {
		return gateway4
	}
	return gateway6
}
