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

// Ask asks for routes, or for one session in full.
type Ask struct {
	ID uint64
	// Peer limits routes to those that one peer sent; with Sent, to those that are sent to it.
	Peer netip.Addr `json:",omitzero"`
	Sent bool       `json:",omitempty"`
	// Prefix limits routes to those of the prefix and within it; with Covering, to those that lead
	// to all of it.
	Prefix   netip.Prefix `json:",omitzero"`
	Covering bool         `json:",omitempty"`
	// Neighbour is whose session is asked for: no routes are.
	Neighbour netip.Addr `json:",omitzero"`
}

// Wants reports whether routes of a prefix are asked for.
func (q Ask) Wants(p netip.Prefix) bool {
	switch {
	case !q.Prefix.IsValid():
		return true
	case q.Covering:
		return p.Bits() <= q.Prefix.Bits() && p.Contains(q.Prefix.Addr())
	}
	return q.Prefix.Bits() <= p.Bits() && q.Prefix.Contains(p.Addr())
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
	// Applied is when it was told last what should be, or learned a password anew.
	Applied time.Time
	// Restoring: it begins again where another one ended, and what that one left in the kernel
	// stays until the peers have sent what they have.
	Restoring bool `json:",omitempty"`
	ASN       uint32
	RouterID  netip.Addr `json:",omitzero"`
	Peers     []Peer     `json:",omitempty"`
	Routes    fib.Status
	Err       string `json:",omitempty"` // what of the desired state is not in force
}

// Shown is what the agent says of both to who asks it. Without Desired BGP is not in use on the
// node, without Status no process runs.
type Shown struct {
	Desired   *nodestate.BGP `json:"desired,omitempty"`
	Status    *Status        `json:"status,omitempty"`
	Neighbour *Neighbour     `json:"neighbour,omitempty"` // the one that was asked for
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

// Count returns how many sessions there are, and how many of them are up.
func (s *Status) Count() (all, established int) {
	for _, p := range s.Peers {
		if p.Established() {
			established++
		}
	}
	return len(s.Peers), established
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
	// Installed: it is in the kernel, by Interface and Gateway.
	Installed bool       `json:",omitempty"`
	Interface string     `json:",omitempty"`
	Gateway   netip.Addr `json:",omitzero"`
}

// Neighbour is a session in full. Times are seconds.
type Neighbour struct {
	Peer
	LocalASN  uint32
	LocalAddr netip.Addr `json:",omitzero"`
	Port      uint32     // of the peer, to which this node connects
	// Passive: the peer begins. Password: segments are signed (TCP MD5).
	Passive  bool   `json:",omitempty"`
	Password bool   `json:",omitempty"`
	MinTTL   uint32 `json:",omitempty"` // of packets that are taken; 0 = any
	// ReflectsAs is the cluster's ID with which routes are reflected to it.
	ReflectsAs string `json:",omitempty"`
	// Hold and Keepalive are as the session has them now, the Own ones as this node wants them.
	Hold, Keepalive       uint64
	OwnHold, OwnKeepalive uint64
	// Restart is how long the peer is asked to keep routes, PeerRestart what it asks for.
	Restart, PeerRestart uint32
	Families             []Family     `json:",omitempty"`
	Capabilities         []Capability `json:",omitempty"`
	Sent, Got            Messages
}

// Family is what a session carries of one.
type Family struct {
	Name                           string
	Received, Accepted, Advertised uint64
}

// Capability is one that an end of a session named in its OPEN message (RFC 5492).
type Capability struct {
	Name         string
	Ours, Theirs bool
}

// Messages are counts since the session's configuration.
type Messages struct {
	Total, Open, Update, Keepalive, Refresh, Notification uint64
}

// Answer is to an Ask.
type Answer struct {
	ID     uint64
	Routes []Route `json:",omitempty"`
	More   int     `json:",omitempty"` // that are left out
	// Neighbour is the session that was asked for; nil also from a process that does not know the
	// question.
	Neighbour *Neighbour `json:",omitempty"`
	Err       string     `json:",omitempty"`
}
