// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// MachineFlowsPath is of the open flows of a virtual machine's address, which the controller alone
// asks about: GET reads them at the node that the machine leaves, PUT brings them to the one that
// it is moved to, and says by the last part of the query which are the last, DELETE tells the first
// node that they are there. MachineArrivalPath is answered when the machine announces itself at the
// second one. The query names the address. Flows are lines of JSON.
const (
	MachineFlowsPath    = "/machineflows"
	MachineFlowsAddress = "address"
	MachineFlowsLast    = "last"
	MachineArrivalPath  = "/machinearrival"
)

// MachineFlow is an open flow of a virtual machine. Its source is the machine, or is not
// translated: what a node translates for others it goes on translating.
type MachineFlow struct {
	Proto uint8          `json:"proto"`
	Src   netip.AddrPort `json:"src"`
	Dst   netip.AddrPort `json:"dst"` // as the source sends
	// Backend is where the machine's packets are led that are for a Service; zero = to Dst.
	Backend netip.AddrPort `json:"backend,omitzero"`
	// State is that of TCP, as connection tracking counts (enum tcp_conntrack).
	State uint8 `json:"state,omitempty"`
	// Left are the seconds until the flow is forgotten.
	Left uint32 `json:"left"`
}
