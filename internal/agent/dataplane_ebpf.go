// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/dryrun"
	"github.com/weir-net/weir/internal/events"
)

// ebpfPlane is that of eBPF.
type ebpfPlane struct{ *ebpf.Driver }

// Name is that in a NodeStatus.
func (p ebpfPlane) Name() string { return planeEBPF }

func (p ebpfPlane) traits() traits {
	return traits{uplinks: true, connections: problems.ConnectionTable{Share: "more than an eighth of the connection table", Setting: "FelixConfiguration spec.bpfMapSizeConntrack"}}
}

// convert has the elements of a list in another type of the same fields.
func convert[From, To any](list []From, to func(From) To) []To {
	if list == nil {
		return nil
	}
	out := make([]To, 0, len(list))
	for _, v := range list {
		out = append(out, to(v))
	}
	return out
}

// What the driver reports, in the words of package dataplane.

func (p ebpfPlane) Status() dataplane.Status {
	st := p.Driver.Status()
	return dataplane.Status{Uplinks: st.Uplinks, Endpoints: st.Endpoints, Tunnel: st.Tunnel, Epoch: st.Epoch, Writes: st.Writes,
		Repairs: st.Repairs, Repaired: st.Repaired, Problems: st.Problems, Entries: st.Entries, Arrival: st.Arrival, Late: st.Late}
}

func (p ebpfPlane) Drops() ([]dataplane.Drop, error) {
	drops, err := p.Driver.Drops()
	return convert(drops, func(d counters.Drop) dataplane.Drop { return dataplane.Drop(d) }), err
}

func (p ebpfPlane) DSRFallback() (dataplane.DSRFallback, error) {
	f, err := p.Driver.DSRFallback()
	return dataplane.DSRFallback(f), err
}

func (p ebpfPlane) Pressures() []dataplane.Pressure {
	return convert(p.Driver.Pressures(), func(x ebpf.Pressure) dataplane.Pressure { return dataplane.Pressure(x) })
}

func (p ebpfPlane) Held() ([]dataplane.HeldPod, error) {
	held, err := p.Driver.Held()
	return convert(held, func(h ebpf.Held) dataplane.HeldPod { return dataplane.HeldPod(h) }), err
}

func (p ebpfPlane) ExhaustedPods() ([]dataplane.ExhaustedPod, error) {
	spent, err := p.Driver.ExhaustedPods()
	return convert(spent, func(x ebpf.ExhaustedPod) dataplane.ExhaustedPod { return dataplane.ExhaustedPod(x) }), err
}

func (p ebpfPlane) LostEvents() (dataplane.LostEvents, error) {
	lost, err := p.Driver.LostEvents()
	return dataplane.LostEvents(lost), err
}

func (p ebpfPlane) Places() dataplane.Places { return dataplane.Places(p.Driver.Places()) }

// Programs loads second instances of programs.
func (p ebpfPlane) Programs(names []string) (*dryrun.Instance, error) {
	return p.Driver.NewDryRun(names)
}

// Events begins to read events.
func (p ebpfPlane) Events() (events.Source, error) { return p.Driver.Events() }
