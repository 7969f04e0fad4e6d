// SPDX-License-Identifier: Apache-2.0

// Package eventring reads the ring of events that programs of both families fill: what they decided
// of a packet, by which rules of either end, and why. It turns struct event of bpf/abi.h into
// dataplane.Event, and struct flow_record, what a direction of a flow carried, into
// dataplane.FlowRecord. Programs limit the rate of events, and count those that find no room.
package eventring
