// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// ErrNotRestored says that the endpoints of the node could not be looked for.
var ErrNotRestored = errors.New("cannot find the node's endpoints")

// reconcileInterval is how often Run looks for allocations without an owner.
const reconcileInterval = 30 * time.Second

// Restore finds the endpoints that exist: records with an interface that is theirs, and interfaces
// that name their container and whose record is lost or cannot be read, which is then written
// again. It is called once before Serve. Errors about single records come with the other endpoints;
// ErrNotRestored says that nothing is known of any.
func (s *Server) Restore(ctx context.Context) ([]model.LocalEndpoint, error) {
	links, err := kernel.Dump(s.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("%w: read the interfaces of the host: %w", ErrNotRestored, err)
	}
	addrs, err := s.podAddrs()
	errs := []error{err}
	byName := map[string]netlink.Link{}
	for _, l := range links {
		a := l.Attrs()
		byName[a.Name] = l
		if pod, container, ifname, ok := parseAlias(a.Alias); ok && len(s.IPAM.Lookup(container, ifname)) < len(addrs[a.Index]) {
			errs = append(errs, s.rebuild(l, addrs[a.Index], ipam.Record{ContainerID: container, IfName: ifname, Namespace: pod.Namespace, Pod: pod.Name}))
		}
	}
	var out []model.LocalEndpoint
	for _, records := range group(s.IPAM.Records()) {
		r := records[0]
		l := byName[r.HostInterface]
		if l == nil || l.Attrs().Alias != alias(r.PodName(), r.ContainerID, r.IfName) {
			continue // its ADD was interrupted, or its container is gone: DEL or Reconcile releases it
		}
		out = append(out, endpoint(records, l.Attrs().Index))
	}
	return out, errors.Join(errs...)
}

// podAddrs reads the permanent neighbour entries of all interfaces: the addresses of pods, with
// their MAC addresses, by the index of the interface. With an error it returns what could be read.
func (s *Server) podAddrs() (map[int]map[netip.Addr]string, error) {
	out := map[int]map[netip.Addr]string{}
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		neighs, err := kernel.Dump(func() ([]netlink.Neigh, error) { return s.host.NeighList(0, family) })
		if err != nil {
			errs = append(errs, fmt.Errorf("read the neighbours of the host: %w", err))
			continue
		}
		for _, n := range neighs {
			a, ok := netip.AddrFromSlice(n.IP)
			if a = a.Unmap(); !ok || n.State&netlink.NUD_PERMANENT == 0 || a.IsMulticast() || a.IsLinkLocalUnicast() {
				continue
			}
			if out[n.LinkIndex] == nil {
				out[n.LinkIndex] = map[netip.Addr]string{}
			}
			out[n.LinkIndex][a] = n.HardwareAddr.String()
		}
	}
	return out, errors.Join(errs...)
}

// rebuild writes those records of an interface that are missing. What only a record knows comes
// from the one of the other family, if that is there.
func (s *Server) rebuild(l netlink.Link, addrs map[netip.Addr]string, r ipam.Record) error {
	r.HostInterface, r.Attempt = l.Attrs().Name, "restored"
	known := map[netip.Addr]bool{}
	for _, have := range s.IPAM.Lookup(r.ContainerID, r.IfName) {
		if have.HostInterface == r.HostInterface {
			r, known[have.Address] = have, true
		}
	}
	var errs []error
	for a, mac := range addrs {
		if known[a] {
			continue
		}
		r.Address, r.MAC = a, mac
		if err := s.IPAM.Restore(r); err != nil {
			errs = append(errs, err)
			continue
		}
		s.Log.Warn("restored the record of an address from its interface", "address", a.String(), "interface", r.HostInterface, "pod", r.PodName().String())
	}
	return errors.Join(errs...)
}

// Run looks for allocations without an owner until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if err := s.Reconcile(ctx, now); err != nil && ctx.Err() == nil {
				s.Log.Error("cannot release addresses without an owner", "error", err)
			}
		}
	}
}

// Reconcile releases allocations that have had no owner for the grace period: the interface is gone
// (or belongs to a newer sandbox of the pod), and so is the pod, or its other sandbox has an
// interface.
func (s *Server) Reconcile(ctx context.Context, now time.Time) error {
	var errs []error
	for _, r := range s.stale.Find(s.IPAM.Records(), s.live, now) {
		s.Log.Warn("releasing an address whose container is gone", "address", r.Address.String(), "pod", r.PodName().String(), "container", r.ContainerID)
		errs = append(errs, s.teardownLocked(ctx, r, func(rs []ipam.Record) bool { return !s.live(rs[0]) }))
	}
	return errors.Join(errs...)
}

// hasInterface reports whether the interface of a record exists; in doubt, it does.
func (s *Server) hasInterface(r ipam.Record) bool {
	l, err := s.host.byName(r.HostInterface)
	return err != nil || l != nil && l.Attrs().Alias == alias(r.PodName(), r.ContainerID, r.IfName)
}

// live reports whether something may still use the address of a record.
func (s *Server) live(r ipam.Record) bool {
	l, err := s.host.byName(r.HostInterface)
	if err != nil {
		return true
	}
	if l != nil && l.Attrs().Alias == alias(r.PodName(), r.ContainerID, r.IfName) {
		return true
	}
	newer := l != nil && strings.HasPrefix(l.Attrs().Alias, "weir:")
	return !newer && s.Pods.PodLives(r.PodName(), r.UID)
}
