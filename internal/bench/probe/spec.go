// SPDX-License-Identifier: Apache-2.0

// Package probe is what `weir bench` runs in its pods: a server that answers only who has its
// token, and clients that measure towards it over TCP and UDP. It needs no rights and no settings
// of the node. Servers and clients speak to the kernel by blocking system calls on threads of their
// own, because Go's poller would be part of what is measured.
package probe

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Test is a method of measuring a path.
type Test string

const (
	Ping       Test = "ping"     // one request, to learn that a path works
	Idle       Test = "idle"     // nothing: what the nodes do by themselves
	Stream     Test = "stream"   // TCP, as fast as it goes, over one connection or many
	Datagrams  Test = "udp"      // UDP in one direction, at a rate or as fast as it goes
	RoundTrip  Test = "rr"       // request and answer over one TCP connection
	UDPTrip    Test = "udp-rr"   // the same over UDP
	Connection Test = "crr"      // connect, request, answer, close, one after the other
	HTTP       Test = "http"     // a number of HTTP requests, one after the other, each on a connection of its own
	Rate       Test = "cps"      // connections as in Connection, from many threads
	Apache     Test = "ab"       // a number of HTTP requests with some at a time, each on a connection of its own
	Endpoint   Test = "endpoint" // the time from a changed EndpointSlice to its effect
	Policy     Test = "policy"   // the time from a changed NetworkPolicy to its effect
	PodStart   Test = "pod"      // the time from a pod's creation to its first packet
)

// Spec is one measurement; a client reads it as JSON.
type Spec struct {
	Test   Test           `json:"test"`
	To     netip.AddrPort `json:"to"`
	UDP    netip.AddrPort `json:"udp"`    // the same server's datagrams
	Direct netip.AddrPort `json:"direct"` // the server without what is measured between; To where it is not set
	// Duration bounds tests of a time; Count is how many requests tests of a number make.
	Duration time.Duration `json:"duration"`
	Count    int           `json:"count,omitempty"`
	WarmUp   time.Duration `json:"warm_up,omitempty"`
	Threads  int           `json:"threads,omitempty"` // connections, streams or senders at a time; 0 = one
	Size     int           `json:"size,omitempty"`    // bytes of a message or datagram; 0 = what fits the path's MTU
	Rate     float64       `json:"rate,omitempty"`    // bits a second of Datagrams' payload; 0 = as fast as it goes
	Body     int           `json:"body,omitempty"`    // bytes of an HTTP answer's body
	// Congestion is the TCP congestion control of the client's sockets; empty = the system's.
	Congestion string `json:"congestion,omitempty"`
	// CongestionIfAllowed leaves sockets the system's where that one may not be set.
	CongestionIfAllowed bool `json:"congestionIfAllowed,omitempty"`
	// Patience is how long one answer may take.
	Patience time.Duration `json:"patience"`
	Control  *Control      `json:"control,omitempty"`
}

// Control is what the tests of the control plane need.
type Control struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"` // of the EndpointSlice, of the NetworkPolicy, or the beginning of pods' names
	// Backends are the two addresses that an EndpointSlice changes between, with the names that
	// their servers report.
	Backends map[string]netip.Addr `json:"backends,omitempty"`
	Pod      []byte                `json:"pod,omitempty"` // JSON of a Pod, without a name
}

// limits of what a client accepts: it is bounded whatever it is asked for.
const (
	maxDuration = time.Hour
	maxThreads  = 128
	maxCount    = 10_000_000
	minDatagram = 24
	maxDatagram = 65000
	maxMessage  = 1 << 20
)

// Check says what of a measurement is impossible, and fills what is not said.
func (s *Spec) Check() error {
	known := []Test{Ping, Idle, Stream, Datagrams, RoundTrip, UDPTrip, Connection, HTTP, Rate, Apache, Endpoint, Policy, PodStart}
	if !slices.Contains(known, s.Test) {
		return fmt.Errorf("test %q is not known; this probe knows %v", s.Test, known)
	}
	if s.Threads == 0 {
		s.Threads = 1
	}
	if s.Patience == 0 {
		s.Patience = 5 * time.Second
	}
	if !s.Direct.IsValid() {
		s.Direct = s.To
	}
	switch {
	case !s.To.IsValid():
		return fmt.Errorf("test %s has no address to go to", s.Test)
	case s.Duration < 0 || s.Duration > maxDuration:
		return fmt.Errorf("duration %v: want up to %v", s.Duration, maxDuration)
	case s.Threads < 1 || s.Threads > maxThreads:
		return fmt.Errorf("%d threads: want 1 to %d", s.Threads, maxThreads)
	case s.Count < 0 || s.Count > maxCount:
		return fmt.Errorf("count %d: want up to %d", s.Count, maxCount)
	case s.Size < 0 || s.Size > maxMessage:
		return fmt.Errorf("size %d: want up to %d", s.Size, maxMessage)
	case (s.Test == Datagrams || s.Test == UDPTrip) && (s.Size != 0 && s.Size < minDatagram || s.Size > maxDatagram):
		return fmt.Errorf("datagrams of %d bytes: want %d to %d", s.Size, minDatagram, maxDatagram)
	case (s.Test == Datagrams || s.Test == UDPTrip) && !s.UDP.IsValid():
		return fmt.Errorf("test %s has no address for its datagrams", s.Test)
	case s.Rate < 0:
		return fmt.Errorf("rate %v is negative", s.Rate)
	case s.Body < 0 || s.Body > maxMessage:
		return fmt.Errorf("a body of %d bytes: want up to %d", s.Body, maxMessage)
	}
	if slices.Contains([]Test{HTTP, Apache, Endpoint, Policy, PodStart}, s.Test) && s.Count == 0 {
		return fmt.Errorf("test %s makes a number of requests: count is 0", s.Test)
	}
	return nil
}

// Result is what one measurement brought; a client prints it as JSON.
type Result struct {
	Elapsed float64 `json:"elapsed_s"` // of what was timed
	Bytes   int64   `json:"bytes,omitempty"`
	// Operations are round trips, connections, requests or datagrams that succeeded.
	Operations int64 `json:"operations,omitempty"`
	Sent       int64 `json:"sent,omitempty"` // datagrams
	Lost       int64 `json:"lost,omitempty"` // datagrams; round trips without an answer
	Size       int   `json:"size,omitempty"` // bytes of a datagram
	// Latency is in µs.
	Latency *Latency `json:"latency,omitempty"`
	// Inner is a second time of the same operations: of PodStart, from the program's start to its
	// first packet.
	Inner *Latency `json:"inner,omitempty"`
	// Client and Server are what the two nodes did meanwhile.
	Client Use `json:"client"`
	Server Use `json:"server"`
	// OneMachine: both nodes run on one kernel (a test cluster, or one node). Client and Server are
	// then of the same machine.
	OneMachine bool   `json:"one_machine,omitempty"`
	Congestion string `json:"congestion,omitempty"` // TCP congestion control that was in use
	MSS        int    `json:"mss,omitempty"`        // bytes, of the TCP connection
}

// Latency describes a distribution.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99.9"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	// Bins are the histogram, in rising order, without empty ones.
	Bins []Bin `json:"histogram,omitempty"`
}

// Bin counts the values from above the bin before up to UpTo.
type Bin struct {
	UpTo  float64 `json:"up_to"`
	Count int64   `json:"count"`
}

func (s *Spec) congestion() congestion { return congestion{s.Congestion, !s.CongestionIfAllowed} }
