// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// step is called between the steps that a crash may separate; tests kill the process there.
var step = func(string) {}

// undoList takes back steps in reverse order.
type undoList struct{ steps []func(context.Context) error }

func (u *undoList) add(f func(context.Context) error) { u.steps = append(u.steps, f) }

// run stops at the first step that fails: what comes after it relies on it (an address is not free
// while its interface is there).
func (u *undoList) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i](ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) add(ctx context.Context, req wire.Request, netns *os.File) (*wire.Result, func(), error) {
	name := model.Name{Namespace: req.Namespace, Name: req.Pod}
	unlock, err := s.lockBoth(ctx, req.ContainerID, name)
	if err != nil {
		return nil, nil, refusal(wire.CodeTryAgain, "%v", err)
	}
	defer unlock()
	if err := s.Ready(); err != nil {
		s.Waits(name, req.UID, err)
		failure := refusal(wire.CodeTryAgain, "weir-agent is not ready: %v", err)
		var limited *LimitedError
		failure.Starting = !errors.As(err, &limited)
		return nil, nil, failure
	}
	settings := s.Settings()
	mtu := req.MTU
	if mtu == 0 {
		mtu = settings.MTU
	}
	if mtu == 0 {
		failure := refusal(wire.CodeTryAgain, "the MTU for pods is not known yet: the node's uplink was not found")
		failure.Starting = true
		return nil, nil, failure
	}
	pod, err := s.Pods.PodForAdd(ctx, name, req.UID)
	if err != nil {
		s.Waits(name, req.UID, err)
		return nil, nil, podFailure(name, req.UID, err)
	}
	ps, err := openPod(netns)
	if err != nil {
		return nil, nil, err
	}
	defer ps.Close()
	if res := s.already(ctx, req, ps); res != nil {
		return res, nil, nil
	}
	if err := s.makeRoom(ctx, req, name); err != nil {
		return nil, nil, err
	}
	var grant Grant
	if s.Machines != nil {
		if grant, err = s.Machines.Granted(ctx, pod); err != nil {
			s.Waits(name, req.UID, err)
			return nil, nil, refusal(wire.CodeTryAgain, "pod %s: %v", name, err)
		}
	}
	ireq, failure := ipamRequest(req, pod, grant, hostName(settings.InterfacePrefix, name, req.IfName), ps.cookie, s)
	if failure != nil {
		return nil, nil, failure
	}
	if failure := carries(ireq, settings, mtu); failure != nil {
		return nil, nil, failure
	}
	var undo undoList
	res, err := s.build(ctx, req, ireq, ps, mtu, settings, &undo)
	if err != nil {
		if uerr := undo.run(ctx); uerr != nil {
			s.Log.Error("an ADD that failed could not be undone; it will be tried again", "pod", name.String(), "error", uerr)
		}
		return nil, nil, err
	}
	return res, func() { s.undoAdd(req, ireq.Attempt) }, nil
}

func podFailure(name model.Name, uid string, err error) error {
	if errors.Is(err, ErrPodNotFound) {
		return refusal(wire.CodeUnknownContainer, "pod %s (uid %q) is not in the API: it was deleted or replaced", name, uid)
	}
	return refusal(wire.CodeTryAgain, "look up pod %s: %v", name, err)
}

func ipamRequest(req wire.Request, pod Pod, grant Grant, host string, cookie uint64, s *Server) (ipam.Request, *wire.Error) {
	var attempt [8]byte
	rand.Read(attempt[:])
	out := ipam.Request{
		NamespaceLabels: pod.NamespaceLabels,
		Record: ipam.Record{ContainerID: req.ContainerID, IfName: req.IfName, Network: req.Network,
			Namespace: pod.Name.Namespace, Pod: pod.Name.Name, UID: pod.UID, HostInterface: host, MAC: newMAC(),
			NetnsCookie: cookie, Attempt: hex.EncodeToString(attempt[:])},
		IPv4: req.IPv4, IPv6: req.IPv6, Pools4: req.Pools4, Pools6: req.Pools6,
		From4: "network configuration key ipam.ipv4_pools", From6: "network configuration key ipam.ipv6_pools",
	}
	given := out.MAC
	if failure := applyAnnotations(pod, &out, s.Log); failure != nil {
		return out, failure
	}
	if len(grant.Addrs) > 0 {
		out.Fixed, out.Granted = grant.Addrs, true
		if grant.MAC != [6]byte{} {
			out.MAC = macText(grant.MAC)
		}
	}
	if out.MAC != given {
		return out, s.refuseMAC(out)
	}
	return out, nil
}

// carries refuses IPv6 where the data plane would drop it, and where the kernel cannot have it.
func carries(req ipam.Request, settings Settings, mtu int) *wire.Error {
	if !req.IPv6 && !slices.ContainsFunc(req.Fixed, netip.Addr.Is6) {
		return nil
	}
	if !settings.IPv6 {
		return refusal(wire.CodeAddress, "pod %s asks for an IPv6 address, and this node carries no IPv6: set ipv6Support in FelixConfiguration and make an IPPool of IPv6 addresses, or do not ask for one", req.PodName())
	}
	if mtu < minMTU6 {
		return refusal(wire.CodeInvalidConfig, "pod %s asks for an IPv6 address, and the MTU of pods, %d, is below %d, the least that IPv6 needs (RFC 8200): raise the MTU, or do not ask for one", req.PodName(), mtu, minMTU6)
	}
	return nil
}

// already answers an ADD that was done before, for the same container, interface and namespace, and
// whose work is intact.
func (s *Server) already(ctx context.Context, req wire.Request, ps *podSide) *wire.Result {
	records := s.IPAM.Lookup(req.ContainerID, req.IfName)
	if len(records) == 0 || records[0].NetnsCookie != ps.cookie || records[0].Namespace != req.Namespace || records[0].Pod != req.Pod {
		return nil
	}
	host, err := s.verify(ctx, req, records, ps)
	if err != nil {
		return nil
	}
	return makeResult(req, records, host.Attrs().MTU)
}

// makeRoom removes what earlier calls left: of this container, and of older sandboxes of this pod,
// which would have the same host interface.
func (s *Server) makeRoom(ctx context.Context, req wire.Request, name model.Name) error {
	groups := map[string][]ipam.Record{}
	for _, r := range append(s.IPAM.ByPod(name), s.IPAM.Lookup(req.ContainerID, req.IfName)...) {
		if r.IfName == req.IfName {
			groups[r.ContainerID] = append(groups[r.ContainerID], r)
		}
	}
	for container, records := range groups {
		s.Log.Info("removing an earlier sandbox of the pod", "pod", name.String(), "container", container)
		if err := s.teardown(ctx, records); err != nil {
			return fmt.Errorf("remove an earlier sandbox of pod %s: %w", name, err)
		}
	}
	return s.clearName(hostName(s.Settings().InterfacePrefix, name, req.IfName), name)
}

// clearName removes an interface of the pod that no record speaks of.
func (s *Server) clearName(host string, name model.Name) error {
	old, err := s.host.byName(host)
	if err != nil || old == nil {
		return err
	}
	if owner, _, _, ok := parseAlias(old.Attrs().Alias); ok && owner != name {
		return fmt.Errorf("the host interface %s of pod %s belongs to pod %s: their names have the same hash, rename one of them", host, name, owner)
	}
	return s.host.remove(old)
}

// build does the work of an ADD; what it did is in undo also when it fails.
func (s *Server) build(ctx context.Context, req wire.Request, ireq ipam.Request, ps *podSide, mtu int, settings Settings, undo *undoList) (*wire.Result, error) {
	step("add:before-allocate")
	records, err := s.IPAM.Allocate(ctx, ireq)
	if err != nil {
		var refused *ipam.Error
		if errors.As(err, &refused) {
			return nil, refusal(wire.CodeAddress, "pod %s: %v", ireq.PodName(), err)
		}
		return nil, refusal(wire.CodeTryAgain, "address for pod %s: %v", ireq.PodName(), err)
	}
	undo.add(func(context.Context) error {
		_, err := s.IPAM.Release(req.ContainerID, req.IfName)
		return err
	})
	step("add:after-allocate")
	var addrs []netip.Addr
	for _, r := range records {
		addrs = append(addrs, r.Address)
	}
	mac := records[0].MAC
	link, err := s.host.veth(ireq.HostInterface, ps, req.IfName, mac, mtu)
	if err != nil {
		return nil, fmt.Errorf("make the interfaces %s on the host and %s in the pod: %w", ireq.HostInterface, req.IfName, err)
	}
	undo.add(func(context.Context) error { return s.host.remove(link) })
	step("add:after-veth")
	v6 := addrs[len(addrs)-1].Is6()
	if err := s.host.label(link.Index, alias(ireq.PodName(), req.ContainerID, req.IfName), v6); err != nil {
		return nil, fmt.Errorf("set the alias and the settings of %s: %w", ireq.HostInterface, err)
	}
	if err := s.host.ipv6(ireq.HostInterface, v6); err != nil {
		return nil, err
	}
	if err := ps.configure(req.IfName, addrs); err != nil {
		return nil, err
	}
	step("add:after-configure")
	if err := s.enforce(ctx, records, link, ps, settings, undo); err != nil {
		return nil, err
	}
	step("add:done")
	return makeResult(req, records, mtu), nil
}

// enforce attaches the data plane, and only then lets packets through.
func (s *Server) enforce(ctx context.Context, records []ipam.Record, link netlink.Link, ps *podSide, settings Settings, undo *undoList) error {
	ep := endpoint(records, link.Attrs().Index)
	undo.add(func(ctx context.Context) error {
		return errors.Join(s.host.silence(link), s.Enforcer.Detach(ctx, ep))
	})
	if err := s.Enforcer.Attach(ctx, ep); err != nil {
		return refusal(wire.CodeEnforce, "the data plane does not enforce %s of pod %s: %v", ep.Interface, ep.Pod, err)
	}
	step("add:after-attach")
	if err := ctx.Err(); err != nil {
		return refusal(wire.CodeTryAgain, "the caller did not wait for the end of the ADD: %v", err)
	}
	if err := s.host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", ep.Interface, err)
	}
	for _, a := range ep.Addrs {
		if s.standsBy(a) {
			continue
		}
		if err := s.host.route(ep.IfIndex, a, records[0].MAC, settings.RouteProtocol); err != nil {
			return fmt.Errorf("make %s reachable: %w", ep.Interface, err)
		}
	}
	if err := errors.Join(awaitCarrier(ctx, s.host.Handle, ep.IfIndex), awaitCarrier(ctx, ps.Handle, ps.link), ps.awaitAddrs(ctx, ep.Addrs)); err != nil {
		return refusal(wire.CodeTryAgain, "%s does not come up: %v", ep.Interface, err)
	}
	return nil
}

// undoAdd takes back an ADD whose answer was not delivered, unless a later call took its place.
func (s *Server) undoAdd(req wire.Request, attempt string) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	unlock, err := s.lockBoth(ctx, req.ContainerID, model.Name{Namespace: req.Namespace, Name: req.Pod})
	if err != nil {
		s.Log.Error("cannot undo an ADD", "container", req.ContainerID, "error", err)
		return
	}
	defer unlock()
	records := s.IPAM.Lookup(req.ContainerID, req.IfName)
	if len(records) == 0 || records[0].Attempt != attempt {
		return
	}
	if err := s.teardown(ctx, records); err != nil {
		s.Log.Error("cannot undo an ADD", "container", req.ContainerID, "error", err)
	}
}

func makeResult(req wire.Request, records []ipam.Record, mtu int) *wire.Result {
	res := &wire.Result{
		Host: wire.Interface{Name: records[0].HostInterface, MAC: macText(kernel.HostSideMAC), MTU: mtu},
		Pod:  wire.Interface{Name: req.IfName, MAC: records[0].MAC, MTU: mtu, Sandbox: req.Netns},
	}
	for _, r := range records {
		res.Addrs = append(res.Addrs, wire.Addr{Addr: netip.PrefixFrom(r.Address, r.Address.BitLen()).String(), Gateway: gatewayFor(r.Address).String()})
	}
	return res
}
