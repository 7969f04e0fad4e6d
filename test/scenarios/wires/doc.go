// SPDX-License-Identifier: Apache-2.0

// Package wires plays scenarios on a data plane that only a whole kernel runs: each node is a
// network namespace with the driver's rules in it, and every interface of it is one end of a veth
// pair whose other end lies in a namespace next to it. A packet of a scenario is sent on the other
// end of the interface by which it comes, and what comes out of all of them is what the data plane
// did with it. The oracle gets the same packets, with the choices that the data plane was seen to
// make, and any difference is an error.
//
// Nothing here waits for time to pass: a CPU's packets are worked off in their order, so a frame
// that is sent afterwards on the same CPU, and sent again each time it came through, arrives after
// everything that went before.
package wires
