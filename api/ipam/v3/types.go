// SPDX-License-Identifier: Apache-2.0

// Package v3 holds the kinds of projectcalico.org/v3 in which clients look up who has which
// address, as far as the published module of types lacks them. In Weir they are mirrors of what
// each node keeps for itself (internal/ipam/mirror): nothing is decided by them. They carry no
// logic.
//
// +groupName=projectcalico.org
package v3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}

// The resources of the mirrors; BlockAffinity is of the published types.
var (
	IPAMBlocks      = GroupVersion.WithResource("ipamblocks")
	IPAMHandles     = GroupVersion.WithResource("ipamhandles")
	BlockAffinities = GroupVersion.WithResource("blockaffinities")
)

// IPAMBlock says which addresses of a block are allocated, and to whom. Its name is the block's
// CIDR with "-" in place of ".", ":" and "/".
//
// +kubebuilder:resource:scope=Cluster
type IPAMBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAMBlockSpec `json:"spec"`
}

// IPAMBlockSpec has one entry for each address of the block.
type IPAMBlockSpec struct {
	CIDR string `json:"cidr"`
	// Affinity is "host:" and the name of the node that has the block.
	// +optional
	Affinity *string `json:"affinity,omitempty"`
	// Allocations has for each address of the block, in their order, the index of its entry in
	// Attributes; null = the address is free.
	Allocations []*int `json:"allocations"`
	// Unallocated are the positions of free addresses.
	Unallocated []int                 `json:"unallocated"`
	Attributes  []AllocationAttribute `json:"attributes"`
	// SequenceNumber is when the mirror was written, in nanoseconds of Unix time.
	// +optional
	SequenceNumber int64 `json:"sequenceNumber"`
	// SequenceNumberForAllocation has by position when the address was allocated, likewise.
	// +optional
	SequenceNumberForAllocation map[string]int64 `json:"sequenceNumberForAllocation"`
	// Deleted is what clients set before they delete the object.
	// +optional
	Deleted bool `json:"deleted"`
	// StrictAffinity is not used.
	// +optional
	StrictAffinity bool `json:"strictAffinity"`
}

// AllocationAttribute says who has an address.
type AllocationAttribute struct {
	// +optional
	HandleID *string `json:"handle_id,omitempty"`
	// Secondary has namespace, pod, node and timestamp.
	// +optional
	Secondary map[string]string `json:"secondary,omitempty"`
	// +optional
	Alternate map[string]string `json:"alternate,omitempty"`
}

// IPAMHandle counts the addresses of each block that were allocated under one name.
//
// +kubebuilder:resource:scope=Cluster
type IPAMHandle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAMHandleSpec `json:"spec"`
}

// IPAMHandleSpec has the counts by CIDR.
type IPAMHandleSpec struct {
	HandleID string         `json:"handleID"`
	Block    map[string]int `json:"block"`
	// +optional
	Deleted bool `json:"deleted"`
}
