// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
)

func macText(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }

// del removes what an ADD made. What is not there is not an error: a runtime calls DEL as often as
// it likes.
func (s *Server) del(ctx context.Context, req wire.Request) error {
	name := model.Name{Namespace: req.Namespace, Name: req.Pod}
	if records := s.IPAM.Lookup(req.ContainerID, req.IfName); len(records) > 0 {
		name = records[0].PodName() // the record knows better than the call's arguments
	}
	unlock, err := s.lockBoth(ctx, req.ContainerID, name)
	if err != nil {
		return refusal(wire.CodeTryAgain, "%v", err)
	}
	defer unlock()
	if records := s.IPAM.Lookup(req.ContainerID, req.IfName); len(records) > 0 {
		return s.teardown(ctx, records)
	}
	if name.Name == "" {
		return nil
	}
	// No record: an interface whose alias names this container is left of a damaged state
	// directory.
	link, err := s.ownLink(hostName(s.Settings().InterfacePrefix, name, req.IfName), alias(name, req.ContainerID, req.IfName))
	if err != nil || link == nil {
		return err
	}
	return s.host.remove(link)
}

// ownLink returns the interface of that name if its alias is text, else nil.
func (s *Server) ownLink(host, text string) (netlink.Link, error) {
	link, err := s.host.byName(host)
	if err != nil || link == nil || link.Attrs().Alias != text {
		return nil, err
	}
	return link, nil
}

// teardown removes an interface, its data-plane state and its addresses, in the order in which
// nothing is used after it is gone. A step that fails leaves the addresses taken.
func (s *Server) teardown(ctx context.Context, records []ipam.Record) error {
	r := records[0]
	link, err := s.host.byName(r.HostInterface)
	if err != nil {
		return err
	}
	ifindex := 0
	if link != nil {
		// Without an alias an ADD was interrupted right after making it; with another one it
		// belongs to a newer sandbox.
		if text := link.Attrs().Alias; text != "" && text != alias(r.PodName(), r.ContainerID, r.IfName) {
			link = nil
		} else {
			ifindex = link.Attrs().Index
		}
	}
	if link != nil {
		// What the pod still sends is evaluated until nothing more comes: while the kernel takes an
		// interface away, packets pass it that no program sees any more.
		if err := s.host.silence(link); err != nil {
			return err
		}
	}
	step("del:before-detach")
	if err := s.Enforcer.Detach(ctx, endpoint(records, ifindex)); err != nil {
		return refusal(wire.CodeEnforce, "the data plane does not let go of %s of pod %s: %v", r.HostInterface, r.PodName(), err)
	}
	step("del:after-detach")
	if link != nil {
		if err := s.host.remove(link); err != nil {
			return err
		}
	}
	step("del:after-link")
	if _, err := s.IPAM.Release(r.ContainerID, r.IfName); err != nil {
		return refusal(wire.CodeIO, "pod %s: %v", r.PodName(), err)
	}
	step("del:done")
	return nil
}

// check compares everything that an ADD made with how it is now.
func (s *Server) check(ctx context.Context, req wire.Request, netns *os.File) error {
	unlock, err := s.lockBoth(ctx, req.ContainerID, model.Name{Namespace: req.Namespace, Name: req.Pod})
	if err != nil {
		return refusal(wire.CodeTryAgain, "%v", err)
	}
	defer unlock()
	records := s.IPAM.Lookup(req.ContainerID, req.IfName)
	if len(records) == 0 {
		return refusal(wire.CodeUnknownContainer, "container %s has no address for %s on this node", req.ContainerID, req.IfName)
	}
	for _, text := range req.Addrs {
		if !slices.ContainsFunc(records, func(r ipam.Record) bool { return hostText(r) == text }) {
			return refusal(wire.CodeInterface, "the result of the ADD names %s, which container %s does not have", text, req.ContainerID)
		}
	}
	ps, err := openPod(netns)
	if err != nil {
		return err
	}
	defer ps.Close()
	_, err = s.verify(ctx, req, records, ps)
	return err
}

func hostText(r ipam.Record) string {
	n := hostNet(r.Address)
	return n.String()
}

// verify returns the host side of an interface if all is as ADD leaves it.
func (s *Server) verify(ctx context.Context, req wire.Request, records []ipam.Record, ps *podSide) (netlink.Link, error) {
	r := records[0]
	link, err := s.ownLink(r.HostInterface, alias(r.PodName(), r.ContainerID, r.IfName))
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, fmt.Errorf("the interface %s of container %s is not on the host", r.HostInterface, r.ContainerID)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("the interface %s is down", r.HostInterface)
	}
	ep := endpoint(records, link.Attrs().Index)
	if err := ps.verify(req.IfName, r.MAC, ep.Addrs); err != nil {
		return nil, err
	}
	for _, a := range ep.Addrs {
		if s.standsBy(a) {
			continue
		}
		dst := hostNet(a)
		routes, err := s.host.RouteListFiltered(family(a.Is6()), &netlink.Route{LinkIndex: ep.IfIndex, Dst: &dst}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
		if err != nil {
			return nil, fmt.Errorf("read the routes to %s: %w", a, err)
		}
		if len(routes) == 0 {
			return nil, fmt.Errorf("the route to %s by %s is missing on the host", a, r.HostInterface)
		}
	}
	if err := s.Enforcer.Check(ctx, ep); err != nil {
		return nil, refusal(wire.CodeEnforce, "the data plane does not enforce %s of pod %s: %v", ep.Interface, ep.Pod, err)
	}
	return link, nil
}

func family(v6 bool) int {
	if v6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// gc removes the interfaces of the network that the runtime does not know any more.
func (s *Server) gc(ctx context.Context, req wire.Request) error {
	begin := time.Now()
	valid := map[wire.Attachment]bool{}
	for _, v := range req.Valid {
		valid[v] = true
	}
	var errs []error
	for _, records := range group(s.IPAM.Records()) {
		r := records[0]
		// An ADD that runs at the same time may be newer than the runtime's list.
		if valid[wire.Attachment{ContainerID: r.ContainerID, IfName: r.IfName}] || r.Network != req.Network || r.Time.After(begin) {
			continue
		}
		s.Log.Info("removing an interface that the runtime does not know", "pod", r.PodName().String(), "container", r.ContainerID, "address", r.Address.String())
		errs = append(errs, s.teardownLocked(ctx, r, func([]ipam.Record) bool { return true }))
	}
	return errors.Join(errs...)
}

// teardownLocked removes the interface of a record found without a lock, if it still is the one
// found and sure agrees.
func (s *Server) teardownLocked(ctx context.Context, r ipam.Record, sure func([]ipam.Record) bool) error {
	unlock, err := s.lockBoth(ctx, r.ContainerID, r.PodName())
	if err != nil {
		return err
	}
	defer unlock()
	records := s.IPAM.Lookup(r.ContainerID, r.IfName)
	if len(records) == 0 || records[0].Attempt != r.Attempt || !sure(records) {
		return nil
	}
	return s.teardown(ctx, records)
}

// group puts the records of one interface together; those that cannot be read are left out.
func group(records []ipam.Record) [][]ipam.Record {
	index := map[wire.Attachment]int{}
	var out [][]ipam.Record
	for _, r := range records {
		if r.ContainerID == "" {
			continue
		}
		key := wire.Attachment{ContainerID: r.ContainerID, IfName: r.IfName}
		i, ok := index[key]
		if !ok {
			i = len(out)
			index[key] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], r)
	}
	return out
}
