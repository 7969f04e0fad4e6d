// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/bgp"
	"github.com/weir-net/weir/internal/agent/lbhealth"
	"github.com/weir-net/weir/internal/agent/pace"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/version"
)

const (
	// complainEvery is the least time between two complaints that it cannot be written.
	complainEvery = 30 * time.Second
	// statusPause is the least time between two writes.
	statusPause = 2 * time.Second
	maxDrops    = 20
	maxClients  = 20
)

// publish keeps the node's NodeStatus: at the start, when something that others look at changes,
// and every heartbeat (package pace). Numbers alone wait for the heartbeat, so a pod's start writes
// nothing.
func (a *Agent) publish(ctx context.Context) error {
	check := time.NewTicker(statusPause)
	defer check.Stop()
	p := &a.published
	complained := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.statusDue:
			if p.written() {
				continue // the check that comes within statusPause looks at it
			}
		case <-check.C:
		}
		err := a.publishNow(ctx, false)
		switch {
		case err == nil:
		case ctx.Err() == nil && time.Since(complained) > complainEvery:
			complained = time.Now()
			if apierrors.IsNotFound(err) {
				err = fmt.Errorf("%w: the CRD is not installed; run weir install", err)
			}
			a.log.Warn("the node's status could not be published; trying again", "error", err)
		}
	}
}

// published is the NodeStatus that was written last.
type published struct {
	mu     sync.Mutex
	status *weirv1.NodeStatusStatus // nil = none by this process
	pace   pace.Pace
}

// written reports whether one was.
func (p *published) written() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status != nil
}

// publishNow writes the NodeStatus when it says something else than before, or is due.
func (a *Agent) publishNow(ctx context.Context, due bool) error {
	p := &a.published
	p.mu.Lock()
	defer p.mu.Unlock()
	snap := a.cluster.snapshot()
	if snap.state == nil {
		return nil
	}
	now := a.status(p.status)
	if differs := !sameForOthers(p.status, now); !p.pace.Due(time.Now(), snap.nodes, differs) && !due {
		return nil
	}
	object := &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: a.opts.Node}, Status: *now}
	if err := client.NodeStatuses(a.clients.Dynamic).Apply(ctx, object, "weir-agent"); err != nil {
		return err
	}
	p.status = now
	p.pace.Wrote(time.Now(), snap.nodes)
	return nil
}

// sameForOthers compares what others look at: all but numbers and times.
func sameForOthers(a, b *weirv1.NodeStatusStatus) bool {
	strip := func(s weirv1.NodeStatusStatus) weirv1.NodeStatusStatus {
		s.LastHeartbeat, s.Drops, s.Tables, s.DSRFallback, s.FlowRecords, s.Announced, s.Endpoints, s.Services, s.Policies, s.FanOut = nil, nil, nil, nil, nil, nil, 0, 0, 0, ""
		if w := s.WireGuard; w != nil { // how far others are is nothing to tell them
			s.WireGuard = &weirv1.WireGuardStatus{PublicKey: w.PublicKey, PublicKeyIPv6: w.PublicKeyIPv6, NextPublicKey: w.NextPublicKey, NextPublicKeyIPv6: w.NextPublicKeyIPv6}
		}
		if s.EgressGateways != nil { // nor is who leaves
			s.EgressGateways = &weirv1.EgressGatewaysStatus{}
		}
		if b := s.BGP; b != nil {
			s.BGP = &weirv1.BGPStatus{Objects: b.Objects}
		}
		s.Conditions = slices.Clone(s.Conditions)
		for i := range s.Conditions {
			s.Conditions[i].LastTransitionTime = metav1.Time{}
		}
		return s
	}
	return a != nil && !bgp.Complete(a.BGP, b.BGP) && reflect.DeepEqual(strip(*a), strip(*b))
}

// status reports how the node is now.
func (a *Agent) status(before *weirv1.NodeStatusStatus) *weirv1.NodeStatusStatus {
	snap := a.cluster.snapshot()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	st := &weirv1.NodeStatusStatus{
		Version: version.Version, Dataplane: a.driver.Name(), ServiceHandling: servicesBy(snap.state), LinkAddress: linkAddress(snap.machine.MAC),
		LastHeartbeat: &now, Endpoints: int32(snap.endpoints), Services: int32(snap.services), Policies: int32(snap.policies()),
		FanOut:   a.source.Status().FanOut,
		Problems: a.problems(snap), UnsupportedFields: snap.config.Unsupported,
	}
	if never := a.driver.traits().never; len(never) > 0 {
		st.UnsupportedFields = append(slices.Clone(st.UnsupportedFields), never...)
	}
	st.Announced = announced(snap.state)
	for i, into := range []*string{&st.NodeAddress, &st.NodeAddressIPv6} {
		if a := snap.nodeAddrs[i]; a.IsValid() {
			*into = a.String()
		}
	}
	for _, p := range snap.machine.Subnets {
		st.Subnets = append(st.Subnets, p.String())
	}
	st.Interfaces, st.NoIPIP = snap.machine.Interfaces(), a.noIPIP(snap)
	st.EgressGateways = a.egressGateways(snap)
	st.WireGuard = wireGuardStatus(a.wireguard.Status())
	st.BGP = bgp.NodeStatus(snap.state, a.bgp.Status())
	if f, err := a.driver.DSRFallback(); err == nil {
		st.DSRFallback = fallback(f)
	}
	st.FlowRecords, st.Tables = a.flows.NodeStatus(now), problems.FullestTables(a.driver.Pressures())
	if drops, err := a.driver.Drops(); err == nil {
		st.Drops = topDrops(drops, snap.state)
	}
	for _, c := range a.conditions(snap) {
		c.LastTransitionTime = now
		if before != nil {
			i := slices.IndexFunc(before.Conditions, func(b weirv1.Condition) bool { return b.Type == c.Type && b.Status == c.Status })
			if i >= 0 {
				c.LastTransitionTime = before.Conditions[i].LastTransitionTime
			}
		}
		st.Conditions = append(st.Conditions, c)
	}
	return st
}

// Who carries Services, in a NodeStatus.
const (
	servicesByWeir  = "Weir"
	servicesByProxy = "kube-proxy"
)

func servicesBy(s *nodestate.State) string {
	if s != nil && s.Settings.KubeProxy {
		return servicesByProxy
	}
	return servicesByWeir
}

func linkAddress(mac net.HardwareAddr) string {
	if len(mac) != 6 || mac[0]&1 != 0 || slices.Equal(mac, make([]byte, 6)) {
		return ""
	}
	return mac.String()
}

func condition(kind string, err error, why string) weirv1.Condition {
	if err == nil {
		return weirv1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "AsItShouldBe"}
	}
	return weirv1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: why, Message: weirv1.Clip(err.Error(), weirv1.MaxProblemMessage)}
}

func dataplaneCondition(err error) weirv1.Condition {
	var changing errChanging
	if errors.As(err, &changing) {
		return condition(weirv1.ConditionDataplane, err, weirv1.ReasonChanging)
	}
	return condition(weirv1.ConditionDataplane, err, "NotInPlace")
}

func (a *Agent) conditions(snap snapshot) []weirv1.Condition {
	w := a.source.Status()
	var api, conf error
	if !w.Connected {
		api = fmt.Errorf("%s; traffic and policy go on as known since %s", w.Err, w.Since.UTC().Format(time.RFC3339))
	}
	if n := len(snap.config.Problems); n > 0 {
		conf = errors.New(snap.config.Problems[0].String())
	}
	return []weirv1.Condition{
		condition(weirv1.ConditionReady, a.ready(), "NotReady"),
		condition(weirv1.ConditionAPIServer, api, "Unreachable"),
		dataplaneCondition(a.dataplane()),
		condition(weirv1.ConditionConfiguration, conf, "InvalidValue"),
	}
}

// errChanging: another data plane is about to carry the node's packets.
type errChanging struct{ from, to string }

func (e errChanging) Error() string {
	return "the data plane changes from " + e.from + " to " + e.to + "; until it has handed its connections over, " + e.from + " carries packets"
}

// dataplane says what of the node's state is not in the kernel.
func (a *Agent) dataplane() error {
	if to := a.changing.Load(); to != nil {
		from := planeEBPF
		if *to == planeEBPF {
			from = planeNFTables
		}
		return errChanging{from, *to}
	}
	if stuck := a.loop.Stuck(); stuck > stuckAfter {
		return fmt.Errorf("the data plane has been busy with one change for %s", stuck.Round(time.Second))
	}
	if err := a.loop.Err(); err != nil {
		return err
	}
	if st := a.driver.Status(); len(st.Problems) > 0 {
		return errors.New(strings.Join(st.Problems, "; "))
	}
	return nil
}

// fallback names the latest clients for which direct server return does not work; nil when there
// are none.
func fallback(f dataplane.DSRFallback) *weirv1.DSRFallback {
	if len(f.Clients) == 0 {
		return nil
	}
	out := &weirv1.DSRFallback{Clients: int32(len(f.Clients))}
	for _, a := range f.Clients[:min(len(f.Clients), maxClients)] {
		out.Addresses = append(out.Addresses, a.String())
	}
	return out
}

// topDrops are the most frequent drops, with the rules' words. Rules that are gone are left out:
// their counts stay in the kernel, and would hide what is dropped now (the metrics have them
// together, as "gone"). So is what nobody has to look at.
func topDrops(drops []dataplane.Drop, s *nodestate.State) []weirv1.Drop {
	drops = slices.DeleteFunc(drops, func(d dataplane.Drop) bool {
		if d.Rule == 0 || s == nil {
			return reason.Reason(d.Reason).Quiet()
		}
		_, there := s.Rules.Get(d.Rule)
		return !there
	})
	slices.SortStableFunc(drops, func(x, y dataplane.Drop) int {
		switch {
		case x.Packets > y.Packets:
			return -1
		case x.Packets < y.Packets:
			return 1
		}
		return 0
	})
	var out []weirv1.Drop
	for _, d := range drops[:min(len(drops), maxDrops)] {
		out = append(out, weirv1.Drop{Reason: reason.Reason(d.Reason).String(), Rule: s.RuleText(d.Rule), Packets: int64(d.Packets)})
	}
	return out
}

// maxAnnounced bounds the addresses that a status names.
const maxAnnounced = 100

// announced lists the addresses that the node answers neighbours for.
func announced(s *nodestate.State) []string {
	if s == nil {
		return nil
	}
	var out []string
	for _, a := range slices.SortedFunc(maps.Keys(s.Announced), netip.Addr.Compare) {
		if len(out) == maxAnnounced {
			break
		}
		out = append(out, a.String())
	}
	return out
}

// problems are those of this machine and of the configuration, and then those of objects.
func (a *Agent) problems(snap snapshot) []weirv1.Problem {
	n := snap.node(a.opts.Node)
	out := slices.Clone(snap.config.Problems)
	if !a.cluster.opened.Chained { // another CNI plugin gives addresses
		out = append(out, a.ipam.Problems()...)
	}
	out = append(out, a.mirror.Problems()...)
	out = append(out, problems.Addresses(n)...)
	out = append(out, problems.BGP(n, a.bgp.Status(), a.started, time.Now())...)
	out = append(out, problems.MissingEgressPolicies(n)...)
	out = append(out, a.bgpStatuses.Problems()...)
	st, of := a.driver.Status(), a.driver.traits()
	out = append(out, problems.HostEndpoints(n, st.Uplinks, !of.uplinks)...)
	out = append(out, problems.LateDrops(a.opts.Node, st.Arrival)...)
	out = append(out, a.metricsTLS.Problems(a.opts.Node)...)
	if a.flows.Collector.Interval() > 0 {
		out = append(out, a.flowAPI.Problems(a.opts.Node)...)
	}
	out = append(out, problems.WireGuard(a.opts.Node, a.wireguard.Status())...)
	out = append(out, problems.NoIPIP(a.opts.Node, st.NoIPIP, snap.state)...)
	out = append(out, a.planes.problem(a.opts.Node, snap.config.Effective)...)
	if of.alongsideProxy {
		out = append(out, a.limits.Of(a.opts.Node, snap.state, dataplane.Lacks(a.driver))...)
		out = append(out, problems.KubeProxy(a.opts.Node, a.cluster.servicesBy())...)
	}
	if len(st.Uplinks) == 0 && of.uplinks {
		out = append(out, problems.NoUplinks(snap.config.Settings.DataIfaces))
	}
	out = append(out, problems.FullMaps(a.opts.Node, a.driver.Pressures())...)
	out = append(out, problems.Repairs(a.opts.Node, st)...)
	objects := slices.Concat(problems.Overlaps(snap.overlaps), problems.Unfit(n), problems.Claims(snap.refused), problems.Refusals(snap.state), problems.Overdrawn(n), snap.problems, snap.tierless, snap.replaced, snap.idleEgress)
	if c := a.serviceChecks.Load(); c != nil {
		objects = append(objects, lbhealth.Problems(a.opts.Node, c.Failing(), c.Unanswered())...)
	}
	if held, err := a.driver.Held(); err == nil {
		objects = append(objects, problems.BusyPods(held, of.connections, a.cluster.owner)...)
	}
	if spent, err := a.driver.ExhaustedPods(); err == nil {
		objects = append(objects, problems.PodsWithoutPorts(spent, a.cluster.owner)...)
	}
	return problems.Shown(a.opts.Node, out, objects)
}
