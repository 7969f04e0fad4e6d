// SPDX-License-Identifier: Apache-2.0

// Package mirror shows clients of projectcalico.org/v3 which addresses the pods of a node have: an
// IPAMBlock and a BlockAffinity for each block of the node, and one IPAMHandle. They are written
// after the fact, one write in five seconds, and decide nothing: the records of the node do. A
// client that takes an allocation out of an IPAMBlock asks the node to release the address, which
// it does unless a pod has it; everything else that others write is written over. Addresses of load
// balancers are shown likewise (ShowBalancers).
package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/api/client"
	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/ipam"
)

const (
	// WriteEvery is the least time between two writes of a node.
	WriteEvery = 5 * time.Second
	// askWithin bounds one request.
	askWithin = 20 * time.Second
	// followAgain is the pause between two watches of an object.
	followAgain = 10 * time.Second
	// lookAgain is that between two looks at an object that may not be watched.
	lookAgain = 30 * time.Second
	// settled is how old a record must be for a request to count: a younger one may be of a pod
	// that is being started.
	settled = time.Minute
	// remembered is for how long a request that was not carried out is a problem of the node.
	remembered = 10 * time.Minute
)

// Allocations are what is shown: *ipam.Allocator.
type Allocations interface {
	OwnBlocks() []netip.Prefix
	Records() []ipam.Record
	// ReleaseUnused releases an address that nobody uses; held says who does.
	ReleaseUnused(netip.Addr) (held string, err error)
}

// Mirror writes the objects of one node.
type Mirror struct {
	node string
	api  dynamic.Interface
	from Allocations
	log  *slog.Logger
	now  func() time.Time
	pace time.Duration // between two writes

	seen chan *unstructured.Unstructured // blocks, as they are now
	// have is what there is in the API, by resource and name, as far as it is known; nil = nothing.
	have map[schema.GroupVersionResource]map[string]*unstructured.Unstructured
	// wrote is the version of each block that this process wrote last, and shown the allocations
	// in it.
	wrote  map[netip.Prefix]string
	shown  map[netip.Prefix]map[netip.Addr]ipam.Record
	follow map[netip.Prefix]context.CancelFunc

	mu      sync.Mutex
	refused map[netip.Addr]refusal
}

// refusal is a request that was not carried out.
type refusal struct {
	why  string
	when time.Time
}

// New returns the Mirror of a node; nothing is asked or written before Run.
func New(api dynamic.Interface, node string, from Allocations, log *slog.Logger) *Mirror {
	return &Mirror{node: node, api: api, from: from, log: log, now: time.Now, pace: WriteEvery, seen: make(chan *unstructured.Unstructured),
		have:  map[schema.GroupVersionResource]map[string]*unstructured.Unstructured{ipamv3.IPAMBlocks: {}, ipamv3.IPAMHandles: {}, ipamv3.BlockAffinities: {}},
		wrote: map[netip.Prefix]string{}, shown: map[netip.Prefix]map[netip.Addr]ipam.Record{}, follow: map[netip.Prefix]context.CancelFunc{}, refused: map[netip.Addr]refusal{}}
}

// Run keeps the objects until ctx ends. What cannot be written is tried again.
func (m *Mirror) Run(ctx context.Context) error {
	tick := time.NewTicker(m.pace)
	defer tick.Stop()
	var complained time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-m.seen:
			m.note(u)
		case <-tick.C:
			err := m.step(ctx)
			if err != nil && ctx.Err() == nil && m.now().Sub(complained) > 10*time.Minute {
				complained = m.now()
				m.log.Warn("clients of projectcalico.org/v3 are not shown all allocations; trying again", "error", err)
			}
		}
	}
}

// step writes the first object that is not as it should be.
func (m *Mirror) step(ctx context.Context) error {
	blocks, records := m.from.OwnBlocks(), m.from.Records()
	for _, b := range blocks {
		if m.follow[b] == nil {
			of, stop := context.WithCancel(ctx)
			m.follow[b] = stop
			go m.watch(of, clientName(b))
		}
	}
	for b, stop := range m.follow {
		if !slices.Contains(blocks, b) { // its objects go with the block, which owns them
			stop()
			delete(m.follow, b)
			delete(m.shown, b)
			delete(m.have[ipamv3.IPAMBlocks], clientName(b))
			delete(m.have[ipamv3.BlockAffinities], m.affinityName(b))
		}
	}
	// A client finds a handle for what it finds in a block.
	handle := handleSpec(m.node, blocks, records)
	if len(blocks) > 0 {
		if wrote, err := m.put(ctx, ipamv3.IPAMHandles, "IPAMHandle", HandleOf(m.node), netip.Prefix{}, &handle); wrote || err != nil {
			return err
		}
	}
	for _, b := range blocks {
		affinity := affinitySpec(m.node, b)
		if wrote, err := m.put(ctx, ipamv3.BlockAffinities, "BlockAffinity", m.affinityName(b), b, affinity); wrote || err != nil {
			return err
		}
		spec := blockSpec(m.node, b, records)
		if m.current(ctx, b, &spec) {
			continue
		}
		now := map[netip.Addr]ipam.Record{}
		for _, r := range records {
			if b.Contains(r.Address) {
				now[r.Address] = r
			}
		}
		spec.SequenceNumber = sequence(m.now())
		wrote, err := m.put(ctx, ipamv3.IPAMBlocks, "IPAMBlock", clientName(b), b, &spec)
		if err != nil {
			return err
		}
		if wrote {
			m.wrote[b], m.shown[b] = m.have[ipamv3.IPAMBlocks][clientName(b)].GetResourceVersion(), now
			return nil
		}
	}
	return nil
}

// current reports whether the mirror of a block says what it should, but for when it was written.
func (m *Mirror) current(ctx context.Context, b netip.Prefix, want *ipamv3.IPAMBlockSpec) bool {
	u, known := m.have[ipamv3.IPAMBlocks][clientName(b)]
	if !known {
		if u = m.read(ctx, ipamv3.IPAMBlocks, clientName(b)); u == nil {
			return false
		}
		m.note(u)
	}
	var have ipamv3.IPAMBlock
	if u == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &have) != nil || len(u.GetOwnerReferences()) != 1 {
		return false
	}
	of := *want
	of.SequenceNumber = have.Spec.SequenceNumber
	return sameJSON(&of, &have.Spec)
}

// put writes an object where it is not as it should be. The IPAMBlock of weir.dev owns what is
// about a block, so that it goes when that does; the Node owns the handle.
func (m *Mirror) put(ctx context.Context, r schema.GroupVersionResource, kind, name string, block netip.Prefix, spec any) (wrote bool, err error) {
	u, known := m.have[r][name]
	if !known {
		u = m.read(ctx, r, name)
		m.have[r][name] = u
	}
	if u != nil && len(u.GetOwnerReferences()) == 1 && sameJSON(spec, u.Object["spec"]) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	owner, err := m.owner(ctx, block)
	if err != nil {
		return false, err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return false, fmt.Errorf("write %s %s: %w", kind, name, err)
	}
	var of map[string]any
	if err := json.Unmarshal(text, &of); err != nil {
		return false, fmt.Errorf("write %s %s: %w", kind, name, err)
	}
	next := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": ipamv3.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": of}}
	next.SetOwnerReferences([]metav1.OwnerReference{owner})
	var got *unstructured.Unstructured
	if u == nil {
		got, err = m.api.Resource(r).Create(ctx, next, metav1.CreateOptions{})
	} else {
		next.SetResourceVersion(u.GetResourceVersion())
		got, err = m.api.Resource(r).Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		delete(m.have[r], name) // it is read again
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("write %s %s: %w", kind, name, err)
	}
	m.have[r][name] = got
	return true, nil
}

// owner refers to what an object goes with.
func (m *Mirror) owner(ctx context.Context, block netip.Prefix) (metav1.OwnerReference, error) {
	if block.IsValid() {
		b, err := client.Blocks(m.api).Get(ctx, weirv1.BlockName(block))
		if err != nil {
			return metav1.OwnerReference{}, err
		}
		return metav1.OwnerReference{APIVersion: weirv1.GroupVersion.String(), Kind: "IPAMBlock", Name: b.Name, UID: b.UID}, nil
	}
	n, err := m.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Get(ctx, m.node, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("get Node %s: %w", m.node, err)
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.GetName(), UID: n.GetUID()}, nil
}

// read returns an object, nil where there is none or it cannot be read.
func (m *Mirror) read(ctx context.Context, r schema.GroupVersionResource, name string) *unstructured.Unstructured {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	u, err := m.api.Resource(r).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return u
}

func (m *Mirror) affinityName(block netip.Prefix) string { return m.node + "-" + clientName(block) }

// clientName is how clients name a block: its text with "-" in place of ".", ":" and "/".
func clientName(block netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(block.String())
}

// sameJSON compares two values as they are written.
func sameJSON(a, b any) bool {
	var read [2]any
	for i, v := range []any{a, b} {
		text, err := json.Marshal(v)
		if err != nil || json.Unmarshal(text, &read[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(read[0], read[1])
}

// Problems are the requests of late that were not carried out.
func (m *Mirror) Problems() []ipam.Problem {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.refused, func(_ netip.Addr, r refusal) bool { return m.now().Sub(r.when) > remembered })
	var out []ipam.Problem
	for _, a := range slices.SortedFunc(maps.Keys(m.refused), netip.Addr.Compare) {
		out = append(out, ipam.Problem{Object: "Node " + m.node, Field: "release of an address", Value: a.String(), Message: "was asked for by a change of its IPAMBlock, and not done: " + m.refused[a].why,
			Action: "delete the pod, and the address is released"})
	}
	return out
}
