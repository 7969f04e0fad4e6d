// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/events"
)

// ebpfPlane is that of eBPF.
type ebpfPlane struct{ *ebpf.Driver }

// Name is that in a NodeStatus.
func (p ebpfPlane) Name() string { return planeEBPF }

func (p ebpfPlane) traits() traits {
	return traits{uplinks: true, connections: problems.ConnectionTable{Share: "more than an eighth of the connection table", Setting: "FelixConfiguration spec.bpfMapSizeConntrack"}}
}

// Events begins to read events.
func (p ebpfPlane) Events() (events.Source, error) { return p.Driver.Events() }
