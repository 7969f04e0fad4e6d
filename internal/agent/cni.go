// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/agent/nri"
	"github.com/weir-net/weir/internal/agent/podevents"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/agent/source"
	"github.com/weir-net/weir/internal/agent/vmaddr"
	"github.com/weir-net/weir/internal/agent/vmflows"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/ipam/mirror"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

// enforcementChecker is what the enforcer asks of a driver apart from states.
type enforcementChecker interface {
	// Enforced says what is missing for an endpoint to be enforced.
	Enforced(ep model.LocalEndpoint) error
}

// podFinder finds the pod of an ADD.
type podFinder interface {
	PodForAdd(ctx context.Context, name model.Name, uid string) (*watch.AddPod, error)
}

// enforcer is cni.Enforcer.
type enforcer struct {
	cluster *cluster
	loop    *dataplane.Loop
	driver  enforcementChecker
	pods    podFinder
	// standsBy reports whether an address is a virtual machine's that is on another node.
	standsBy func(netip.Addr) bool
	log      *slog.Logger
}

// enforced says what is missing for an endpoint to be enforced. Of an address that stands by there
// is nothing in the tables: its interface is held.
func (e *enforcer) enforced(ep model.LocalEndpoint) error {
	ep.Addrs = slices.DeleteFunc(slices.Clone(ep.Addrs), e.standsBy)
	return e.driver.Enforced(ep)
}

// Attach implements cni.Enforcer. The pod's labels are known before its endpoint is, so that policy
// binds its first packet.
func (e *enforcer) Attach(ctx context.Context, ep model.LocalEndpoint) error {
	began := time.Now()
	pod, err := e.pods.PodForAdd(ctx, ep.Pod, "")
	if err != nil {
		return err
	}
	found := time.Now()
	gen, err := e.cluster.attach(ctx, ep, pod)
	if err != nil {
		return err
	}
	computed := time.Now()
	if err := e.loop.Wait(ctx, gen, concerning(ep)); err != nil {
		return fmt.Errorf("pod %s: %w", ep.Pod, err)
	}
	applied := time.Now()
	if err := e.enforced(ep); err != nil {
		return fmt.Errorf("pod %s: %w", ep.Pod, err)
	}
	e.log.Debug("endpoint enforced", "pod", ep.Pod.String(), "interface", ep.Interface, "finding the pod", found.Sub(began),
		"computing", computed.Sub(found), "applying", applied.Sub(computed), "checking", time.Since(applied))
	return nil
}

// Detach implements cni.Enforcer.
func (e *enforcer) Detach(ctx context.Context, ep model.LocalEndpoint) error {
	gen, err := e.cluster.detach(ctx, ep)
	if err != nil {
		return err
	}
	return e.loop.Wait(ctx, gen, concerning(ep))
}

// Check implements cni.Enforcer.
func (e *enforcer) Check(ctx context.Context, ep model.LocalEndpoint) error {
	ok, err := e.cluster.has(ctx, ep)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("endpoint of pod %s is not known to the agent", ep.Pod)
	}
	return e.enforced(ep)
}

// concerning picks the failures of an endpoint's addresses and interface. An address whose policy
// could not be written is among them: the driver holds it back.
func concerning(ep model.LocalEndpoint) func(*dataplane.KeyError) bool {
	return func(e *dataplane.KeyError) bool {
		if e.Table == "programs" && strings.HasPrefix(e.Key, ep.Interface+" ") {
			return true
		}
		for _, a := range ep.Addrs {
			if e.Key == a.String() {
				return true
			}
		}
		return false
	}
}

// pods is cni.Pods.
type pods struct {
	source *source.Chooser
	events *podevents.Writer
	node   string
	// settings are those in force.
	settings func() *model.Settings
}

// PodForAdd implements cni.Pods.
func (p pods) PodForAdd(ctx context.Context, name model.Name, uid string) (cni.Pod, error) {
	pod, err := p.source.PodForAdd(ctx, name, uid)
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, watch.ErrPodReplaced):
		return cni.Pod{}, fmt.Errorf("%w: %w", cni.ErrPodNotFound, err)
	case err != nil:
		return cni.Pod{}, err
	}
	p.events.NotInForce(name, pod.UID, slices.Concat(pod.Problems, problems.UngrantedSources(p.settings(), pod.Namespace, pod.Pod), problems.UngrantedFloating(p.settings(), pod.Namespace, pod.Pod)))
	out := cni.Pod{Name: name, UID: pod.UID, Labels: pod.Pod.Labels, Annotations: pod.Annotations, NamespaceAnnotations: pod.NamespaceAnnotations}
	if pod.Namespace != nil {
		out.NamespaceLabels = map[string]string{}
		maps.Copy(out.NamespaceLabels, pod.Namespace.Labels)
	}
	return out, nil
}

// PodLives implements cni.Pods.
func (p pods) PodLives(name model.Name, uid string) bool {
	return p.source.PodLives(name, uid, p.node)
}

// openPods opens what gives pods their addresses and interfaces.
func (a *Agent) openPods() (err error) {
	o := &a.opts
	a.machineFlows = &vmflows.Server{Plane: a.driver, State: func() *nodestate.State { return a.cluster.snapshot().state }, Log: o.Log.With("part", "vmflows")}
	a.machines = vmaddr.New(vmaddr.Config{Node: o.Node, Blocks: client.Blocks(a.clients.Dynamic), Log: o.Log.With("part", "vmaddr"), Arrived: a.machineFlows.Arrived,
		SetReachable: func(ep model.LocalEndpoint, at netip.Addr, is bool) error { return a.cni.SetReachable(ep, at, is) }})
	a.machineFlows.Machines = a.machines
	a.cluster.noteMachines = a.machines.Note
	a.ipam, err = ipam.Open(filepath.Join(o.StateDir, ipamDir), o.Node, a.before.Blocks(ipam.NewAPIBlocks(a.clients.Dynamic, o.Node)),
		ipam.Options{Owner: a.cluster.owner, Refuse: a.cluster.refusePodAddr, Kept: a.machines.Kept, Locked: a.datastore.Locked}, o.Log.With("part", "ipam"))
	if err != nil {
		return err
	}
	a.mirror = mirror.New(a.clients.Dynamic, o.Node, a.ipam, o.Log.With("part", "ipam mirror"))
	a.cluster.setPools = a.ipam.Configure
	a.podEvents = podevents.New(a.clients.Dynamic, o.Node, o.Log.With("part", "podevents"))
	a.cluster.unfitPod = a.podEvents.NotInForce
	policies := &enforcer{cluster: a.cluster, loop: a.loop, driver: a.driver, pods: a.source, standsBy: a.machines.StandsBy, log: o.Log}
	if a.cluster.chain != nil {
		a.nri = nri.New(nri.Socket, policies.hold, o.Log.With("part", "nri"))
	}
	a.cni, err = cni.New(cni.Options{
		IPAM: a.ipam, Pods: pods{a.source, a.podEvents, o.Node, a.cluster.settings}, Settings: a.cluster.cniSettings, Ready: a.cniReady, Waits: a.noteWaiting, Log: o.Log.With("part", "cni"),
		Enforcer: policies, Machines: a.machines,
	})
	return err
}

// restore finds the endpoints of the node, with those that come from another plugin.
func (a *Agent) restore(ctx context.Context) ([]model.LocalEndpoint, error) {
	if err := a.before.Begin(ctx, a.cni); err != nil {
		return nil, errors.Join(cni.ErrNotRestored, err)
	}
	return a.cni.Restore(ctx)
}

// cniReady says what is missing before a pod can be started.
func (a *Agent) cniReady() error {
	st := a.source.Status()
	switch {
	case a.cluster.chain != nil:
		return errors.New("another CNI plugin gives the pods of this node their interfaces (cniChaining): Weir's is not to be called")
	case !st.Synced && a.source.Fed():
		return fmt.Errorf("the cluster was not read yet: %w: no fan-out has sent it (%s)", source.ErrPodWaits, st.Err)
	case !st.Synced:
		return errors.New("the cluster was not read yet")
	case a.loop.Applied() == 0:
		return errors.New("the data plane is not in place yet")
	case a.before.Ready() != nil:
		return a.before.Ready()
	case !st.Connected && a.ipam.Free() == 0:
		return &cni.LimitedError{Reason: "this node's blocks are full and the API server does not answer: " + st.Err}
	}
	return nil
}

// noEventWithin is how long an agent that starts may be without a fan-out until that is an event.
const noEventWithin = 15 * time.Second

// noteWaiting has an event written about a pod that waits because no fan-out can be reached.
func (a *Agent) noteWaiting(pod model.Name, uid string, why error) {
	st := a.source.Status()
	if errors.Is(why, source.ErrPodWaits) && (st.Synced || time.Since(st.Since) >= noEventWithin) {
		a.podEvents.Waits(pod, uid, why)
	}
}
