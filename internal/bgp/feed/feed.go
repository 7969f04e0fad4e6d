// SPDX-License-Identifier: Apache-2.0

// Package feed is what the agent and the BGP process of a node say to each other, over a socket of
// the machine: the agent hands on what should be, and asks; the process says how it is. The agent
// listens, and the process calls again and again while the agent is away. Messages are JSON values,
// one after the other; fields that a receiver does not know are ignored, so that either end may be
// older.
package feed

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/nodestate"
)

// SocketDir is where the socket is, in a folder of its own: the BGP process reaches no other socket
// of the agent.
const (
	SocketDir  = "bgp"
	SocketName = "state.sock"
)

// ToProcess is a message of the agent.
type ToProcess struct {
	// Desired is what should be: with a nil State, no session.
	Desired *Desired `json:",omitempty"`
	Ask     *Ask     `json:",omitempty"`
}

// Desired is what should be.
type Desired struct{ State *nodestate.BGP }

// Ask asks for routes; Peer limits them to those that one peer sent.
type Ask struct {
	ID   uint64
	Peer netip.Addr `json:",omitzero"`
}

// ToAgent is a message of the BGP process.
type ToAgent struct {
	Status *Status `json:",omitempty"`
	Answer *Answer `json:",omitempty"`
}

// Status says how the BGP process is.
type Status struct {
	Version string
	// Since is when it began.
	Since time.Time
	// Restoring: it begins again where another one ended, and what that one left in the kernel
	// stays until the peers have sent what they have.
	Restoring bool `json:",omitempty"`
	ASN       uint32
	RouterID  netip.Addr `json:",omitzero"`
	Peers     []Peer     `json:",omitempty"`
	Routes    fib.Status
	Err       string `json:",omitempty"` // what of the desired state is not in force
}

// Peer is a session.
type Peer struct {
	Addr     netip.Addr
	Name     string
	ASN      uint32
	State    string // idle, connect, active, opensent, openconfirm, established
	Since    time.Time
	RouterID netip.Addr `json:",omitzero"`
	// Received is how many routes it sent, Advertised how many were sent to it.
	Received, Advertised uint64
	// GracefulRestart: it keeps the routes of this node for a while when the session ends.
	GracefulRestart bool   `json:",omitempty"`
	LastError       string `json:",omitempty"` // why the session ended last
	Flaps           uint32 `json:",omitempty"`
	BFD             string `json:",omitempty"` // up, init, down; empty where it is not in use
}

// Established reports whether the session is up.
func (p Peer) Established() bool { return p.State == "established" }

// Route is one that is known.
type Route struct {
	Prefix  netip.Prefix
	NextHop netip.Addr `json:",omitzero"` // invalid: this node's own
	Peer    netip.Addr `json:",omitzero"`
	Path    string     `json:",omitempty"` // of AS numbers
	Best    bool       `json:",omitempty"`
	Stale   bool       `json:",omitempty"`
}

// Answer is to an Ask.
type Answer struct {
	ID     uint64
	Routes []Route `json:",omitempty"`
	More   int     `json:",omitempty"` // that are left out
	Err    string  `json:",omitempty"`
}
