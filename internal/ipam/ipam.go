// SPDX-License-Identifier: Apache-2.0

// Package ipam gives pods their addresses. The agent is the only allocator of its node: it holds
// blocks (ranges of an IPPool that belong to the node, claimed through the API ahead of need), and
// each single allocation is one file on the node. So a pod starts without an API write, and an
// address is either taken by a file or free, whatever was killed when.
//
// Records are not flushed to the disk one by one: what a power failure can lose belongs to
// containers that it ended too.
package ipam

import (
	"context"
	"errors"
	"net/netip"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// DefaultDir is where the allocations of a node live.
const DefaultDir = "/var/lib/weir/ipam"

// ErrTaken is what Blocks.Claim returns when the block, or part of it, belongs to somebody already.
var ErrTaken = errors.New("block is taken")

// Block is a range of a pool that belongs to a node.
type Block struct {
	CIDR netip.Prefix `json:"cidr"`
	Node string       `json:"node"`
	Pool string       `json:"pool"`
	// Machine is the virtual machine whose address the block is, "" where it is a node's.
	Machine string `json:"machine,omitempty"`
	// Services are the addresses that Services have, in a block of LoadBalancers.
	Services []ServiceAddress `json:"services,omitempty"`
}

// ServiceAddress is an address that a Service of type LoadBalancer has.
type ServiceAddress struct {
	Address netip.Addr `json:"address"`
	Service model.Name `json:"service"`
	UID     string     `json:"uid"`
}

// Blocks is where blocks are claimed for this node, for all nodes to see.
type Blocks interface {
	// List returns the blocks of all nodes as they are now in the API, not as a cache saw them: a
	// block that was just released must not come back.
	List(ctx context.Context) ([]Block, error)
	// Claim makes cidr a block of this node. It is atomic over all nodes; ErrTaken (wrapped or not)
	// when it exists already, whoever has it.
	Claim(ctx context.Context, cidr netip.Prefix, pool string) error
	// Release gives a block of this node back; a block that is not there is fine.
	Release(ctx context.Context, cidr netip.Prefix) error
}

// Record is one allocation: an address and what holds it.
type Record struct {
	Address       netip.Addr `json:"address"`
	ContainerID   string     `json:"containerID"`
	IfName        string     `json:"ifname"` // in the pod
	Namespace     string     `json:"namespace,omitempty"`
	Pod           string     `json:"pod,omitempty"`
	UID           string     `json:"uid,omitempty"`
	Network       string     `json:"network,omitempty"` // name of the CNI network
	Node          string     `json:"node"`
	HostInterface string     `json:"hostInterface,omitempty"`
	MAC           string     `json:"mac,omitempty"` // of the pod's side
	NetnsCookie   uint64     `json:"netnsCookie,omitempty"`
	Attempt       string     `json:"attempt,omitempty"` // names the call that made it
	Time          time.Time  `json:"time"`
}

// PodName returns the pod's name.
func (r Record) PodName() model.Name { return model.Name{Namespace: r.Namespace, Name: r.Pod} }

// holder says in words who has the record's address.
func (r Record) holder() string {
	if r.Pod != "" {
		return "pod " + r.PodName().String()
	}
	if r.ContainerID != "" {
		return "container " + r.ContainerID
	}
	return "an allocation whose file cannot be read"
}

// Config is what of the cluster the allocation follows.
type Config struct {
	// Pools in order of preference, the oldest first. Of two that overlap the later one is not
	// used.
	Pools []model.Pool
	// Reservations are the CIDRs of IPReservations: never given unless asked for by annotation.
	Reservations []netip.Prefix
	// NodeLabels are matched by the pools' nodeSelector.
	NodeLabels map[string]string
	// MaxBlocks is IPAMConfiguration.maxBlocksPerHost; 0 = no limit.
	MaxBlocks int
	// NoIPv4: the node has IPv6 alone, so pods need no pool of IPv4.
	NoIPv4 bool
}

// Problem is a finding for the user: which object or file, which field, and what to do.
type Problem = weirv1.Problem

// Request asks for the addresses of one interface.
type Request struct {
	Record     // template: everything but Address, Node and Time
	IPv4, IPv6 bool
	// NamespaceLabels are those of the pod's namespace, for the namespaceSelector of pools; nil =
	// not known.
	NamespaceLabels map[string]string
	// Pools4 and Pools6 are names or CIDRs of pools; empty = every pool that is for this node.
	Pools4, Pools6 []string
	// From4 and From6 name where Pools4 and Pools6 come from, for messages.
	From4, From6 string
	// Fixed are addresses asked for, at most one a family.
	Fixed []netip.Addr
	// Granted: the Fixed are those of a virtual machine whose pod this is, wherever they lie.
	Granted bool
}

// Error is a refusal that trying again does not change until somebody changes something.
type Error struct{ Message string }

func (e *Error) Error() string { return e.Message }
