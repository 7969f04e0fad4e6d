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
	"github.com/weir-net/weir/internal/model"
)

// reconcileInterval is how often Run looks for allocations without an owner.
const reconcileInterval = 30 * time.Second

// Restore finds the endpoints that exist: records with an interface that is theirs, and interfaces that
// name their container and whose record is lost or cannot be read, which is then written again. It is
// called once before Serve.
func (s *Server) Restore(ctx context.Context) ([]model.LocalEndpoint, error) {
	links, err := s.host.LinkList()
	if err != nil {
		return nil, fmt.Errorf("read the interfaces of the host: %w", err)
	}
	byName := map[string]netlink.Link{}
	var errs []error
	for _, l := range links {
		a := l.Attrs()
		byName[a.Name] = l
		if pod, container, ifname, ok := parseAlias(a.Alias); ok && len(s.IPAM.Lookup(container, ifname)) == 0 {
			errs = append(errs, s.rebuild(l, pod, container, ifname))
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

// rebuild writes the records of an interface from its routes and neighbour entries.
func (s *Server) rebuild(l netlink.Link, pod model.Name, container, ifname string) error {
	neighs, err := s.host.NeighList(l.Attrs().Index, 0)
	if err != nil {
		return fmt.Errorf("read the neighbours of %s: %w", l.Attrs().Name, err)
	}
	var errs []error
	for _, n := range neighs {
		a, ok := netip.AddrFromSlice(n.IP)
		if a = a.Unmap(); !ok || n.State&netlink.NUD_PERMANENT == 0 || a.IsMulticast() || a.IsLinkLocalUnicast() {
			continue
		}
		r := ipam.Record{Address: a, ContainerID: container, IfName: ifname, Namespace: pod.Namespace, Pod: pod.Name,
			HostInterface: l.Attrs().Name, MAC: n.HardwareAddr.String(), Attempt: "restored"}
		if err := s.IPAM.Restore(r); err != nil {
			errs = append(errs, err)
			continue
		}
		s.Log.Warn("restored the record of an address from its interface", "address", a.String(), "interface", l.Attrs().Name, "pod", pod.String())
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

// Reconcile releases allocations that have had no owner for the grace period: the interface is gone (or
// belongs to a newer sandbox of the pod), and so is the pod, or its other sandbox has an interface.
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
