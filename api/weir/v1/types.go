// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the kinds of API group weir.dev that Weir keeps for itself: which node owns
// which block of addresses, and what each node says about itself. They carry no logic.
//
// +kubebuilder:object:generate=true
// +groupName=weir.dev
package v1

//go:generate go tool controller-gen object paths=.

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "weir.dev", Version: "v1"}

// The resources of the group.
var (
	IPAMBlocks   = GroupVersion.WithResource("ipamblocks")
	NodeStatuses = GroupVersion.WithResource("nodestatuses")
)

// IPAMBlock gives a range of a pool to one node. Its name is BlockName of its CIDR, so that
// creating it claims the range atomically: of two nodes that try, one is refused with
// AlreadyExists.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,singular=ipamblock,categories=weir
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPAMBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAMBlockSpec `json:"spec"`
}

// IPAMBlockSpec says what the block is and whose.
//
// +kubebuilder:validation:XValidation:rule="self.cidr == oldSelf.cidr && has(self.virtualMachine) == has(oldSelf.virtualMachine) && (self.node == oldSelf.node || has(self.virtualMachine))",message="a block keeps its cidr, and but for a virtual machine's its node; delete it and create another"
type IPAMBlockSpec struct {
	// CIDR of the block, in canonical form.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`
	// Node that gives addresses of the block to its pods, or "virtual:load-balancer"
	// (LoadBalancers).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Pool is the name of the IPPool that the block was cut from.
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`
	// Allocations are the addresses of the block that Services have. Blocks of nodes have none: a
	// node keeps its own records.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=65536
	Allocations []Allocation `json:"allocations,omitempty"`
	// VirtualMachine says that the block is the address of a virtual machine of KubeVirt, which
	// keeps it while it moves from node to node. Node is where packets for it go.
	VirtualMachine *BlockVirtualMachine `json:"virtualMachine,omitempty"`
}

// BlockVirtualMachine says which virtual machine has the address of a block.
type BlockVirtualMachine struct {
	// Name is the "namespace/name" of the VirtualMachineInstance.
	// +kubebuilder:validation:MaxLength=317
	Name string `json:"name"`
	// UID of the VirtualMachine, or of a VirtualMachineInstance that belongs to none: while it is
	// there, the address is kept.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
	// Pod is the UID of the pod in which the machine runs.
	// +kubebuilder:validation:MaxLength=64
	Pod string `json:"pod"`
	// MAC address of the machine's interface, where it has the pod's address itself.
	// +kubebuilder:validation:MaxLength=17
	MAC string `json:"mac,omitempty"`
	// Target of a live migration, while there is one.
	Target *BlockTarget `json:"target,omitempty"`
}

// BlockTarget is the pod that a virtual machine is moved to, which has the same address.
type BlockTarget struct {
	// Node may make itself the node of the block, once the machine runs there.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Pod is its UID.
	// +kubebuilder:validation:MaxLength=64
	Pod string `json:"pod"`
}

// LoadBalancers is the Node of the blocks whose addresses Services of type LoadBalancer get. No
// node can have this name.
const LoadBalancers = "virtual:load-balancer"

// Allocation says which Service has an address.
type Allocation struct {
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// Service is its "namespace/name".
	// +kubebuilder:validation:MaxLength=317
	Service string `json:"service"`
	// UID of the Service: one of the same name that is made later is another.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// IPAMBlockList is a list of IPAMBlock.
//
// +kubebuilder:object:root=true
type IPAMBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPAMBlock `json:"items"`
}

// NodeStatus is what the agent of the node of the same name says about it. Other nodes read
// LinkAddress, Subnets, the keys of WireGuard, NoIPIP and whether there is EgressGateways, the
// controller reads Interfaces, `weir status` the rest.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=nodestatuses,singular=nodestatus,categories=weir
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Dataplane",type=string,JSONPath=`.status.dataplane`
// +kubebuilder:printcolumn:name="Services",type=string,priority=1,JSONPath=`.status.serviceHandling`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.nodeAddress`
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=`.status.nodeAddressIPv6`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Heartbeat",type=date,JSONPath=`.status.lastHeartbeat`
type NodeStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status NodeStatusStatus `json:"status,omitempty"`
}

// NodeStatusStatus is the state of a node at LastHeartbeat.
type NodeStatusStatus struct {
	// Version of the agent.
	Version string `json:"version,omitempty"`
	// Dataplane that carries the packets: "eBPF" or "nftables".
	Dataplane string `json:"dataplane,omitempty"`
	// ServiceHandling says who carries Services: "Weir" or "kube-proxy". Alongside eBPF it is
	// always Weir.
	ServiceHandling string `json:"serviceHandling,omitempty"`
	// NodeAddress is the address by which other nodes know this one, for IPv4.
	NodeAddress string `json:"nodeAddress,omitempty"`
	// NodeAddressIPv6 is the same for IPv6, where the node carries that.
	NodeAddressIPv6 string `json:"nodeAddressIPv6,omitempty"`
	// LinkAddress is the MAC address of the uplink that holds NodeAddress, as "02:00:5e:00:53:01".
	LinkAddress string `json:"linkAddress,omitempty"`
	// Subnets are the on-link subnets of the uplinks.
	// +listType=set
	Subnets []string `json:"subnets,omitempty"`
	// Interfaces are those of the node that have addresses, without pods' and Weir's own: templates
	// of host endpoints name them.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Interfaces []NodeInterface `json:"interfaces,omitempty"`
	// NoIPIP: the node cannot take IP in IP, as its data plane is nftables and its kernel has no
	// device for it. Other nodes send it VXLAN where a pool has an ipipMode.
	NoIPIP bool `json:"noIPIP,omitempty"`
	// EgressGateways says who leaves the cluster by egress gateways; absent = the node leads
	// nothing out by them, and other nodes send it nothing for the gateways on it.
	EgressGateways *EgressGatewaysStatus `json:"egressGateways,omitempty"`
	// WireGuard are the public keys of the node, where it encrypts what it sends to other nodes.
	WireGuard *WireGuardStatus `json:"wireGuard,omitempty"`
	// BGP says of the node's BGP sessions how many there are, where BGP is in use.
	BGP *BGPStatus `json:"bgp,omitempty"`
	// FanOut is the fan-out that the agent has the cluster from, host:port; empty = the agent
	// follows the API server by itself, or no fan-out is connected.
	FanOut string `json:"fanOut,omitempty"`
	// LastHeartbeat is when the agent wrote this.
	LastHeartbeat *metav1.Time `json:"lastHeartbeat,omitempty"`
	// Conditions; Ready says whether pods on this node are connected and enforced.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// Endpoints is how many pod interfaces are connected.
	Endpoints int32 `json:"endpoints,omitempty"`
	// Services is how many Services are carried.
	Services int32 `json:"services,omitempty"`
	// Policies is how many policies apply to pods of this node.
	Policies int32 `json:"policies,omitempty"`
	// Drops are the most frequent drops by reason and rule since the programs were loaded.
	// +listType=atomic
	Drops []Drop `json:"drops,omitempty"`
	// Tables are the fullest ones of the data plane that have a fixed size, the fullest first.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Tables []Table `json:"tables,omitempty"`
	// Announced are the addresses that this node answers neighbours for, the first 100 of them:
	// load balancers' and, where asked for, pods'.
	// +listType=atomic
	Announced []string `json:"announced,omitempty"`
	// DSRFallback are the outside clients that get their answers by the node that they ask, because
	// direct ones (direct server return) did not arrive.
	DSRFallback *DSRFallback `json:"dsrFallback,omitempty"`
	// FlowRecords says which flow records the node lost; absent = none, or none are kept.
	FlowRecords *FlowRecordsStatus `json:"flowRecords,omitempty"`
	// Problems name objects whose content is not in force as written, the field, and what to do.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Problems []Problem `json:"problems,omitempty"`
	// UnsupportedFields are set to something else than their default, and have no effect yet.
	// +listType=atomic
	UnsupportedFields []string `json:"unsupportedFields,omitempty"`
}

// NodeInterface is an interface of a node.
type NodeInterface struct {
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name"`
	// Addresses are the first 16 of the interface, without link-local ones of IPv6.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Addresses []string `json:"addresses"`
}

// Bounds of NodeStatus.
const (
	MaxInterfaces         = 32
	MaxInterfaceAddresses = 16
)

// MaxTables bounds NodeStatusStatus.Tables.
const MaxTables = 8

// Table is how full a table of the data plane is.
type Table struct {
	Name string `json:"name"`
	// Family is "ipv4" or "ipv6", where each has a table of its own.
	Family string `json:"family,omitempty"`
	// Percent is how much of it is in use.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent int32 `json:"percent"`
	// Capacity is how many entries it has room for.
	Capacity int64 `json:"capacity"`
}

// FlowRecordsStatus is what a node knows of its flow records.
type FlowRecordsStatus struct {
	// Lost are flow records that the agent could not make, by why. Those that newer ones replaced
	// in its memory are not among them.
	// +listType=map
	// +listMapKey=why
	// +kubebuilder:validation:MaxItems=16
	Lost []LostFlowRecords `json:"lost,omitempty"`
}

// LostFlowRecords are those that were lost for one reason.
type LostFlowRecords struct {
	// Why is the label of metric weir_flow_records_lost_total.
	// +kubebuilder:validation:MaxLength=32
	Why string `json:"why"`
	// Records is how many were lost since the agent began.
	Records int64 `json:"records"`
	// LastTime is when the last of them were.
	LastTime metav1.Time `json:"lastTime"`
}

// EgressGatewaysStatus is what a node knows of egress gateways.
type EgressGatewaysStatus struct {
	// Gateways are the pods of this node by which pods leave the cluster, with the number of their
	// clients that the node knows ("egress/red-1 10.244.1.7, for 3 pods"), the first 100 of them.
	// +listType=atomic
	Gateways []string `json:"gateways,omitempty"`
	// Clients is how many addresses of pods of this node leave the cluster by gateways alone.
	Clients int32 `json:"clients,omitempty"`
	// Without are the pods of this node that are to leave by gateways and have none, so that
	// nothing of theirs leaves, the first 100 of them.
	// +listType=atomic
	Without []string `json:"without,omitempty"`
	// Down are the addresses of nodes with gateways of this node's pods that answered echo requests
	// and do so no longer, so that others have their place, the first 100 of them.
	// +listType=atomic
	Down []string `json:"down,omitempty"`
}

// BGPStatus sums up the BGP sessions of a node; `weir bgp` shows each of them.
type BGPStatus struct {
	// Sessions is how many the node should have, Established how many of them are up.
	Sessions    int32 `json:"sessions"`
	Established int32 `json:"established"`
	// LearnedRoutes is how many prefixes the sessions brought, InstalledRoutes how many of them are
	// in the kernel.
	LearnedRoutes   int32 `json:"learnedRoutes,omitempty"`
	InstalledRoutes int32 `json:"installedRoutes,omitempty"`
	// Objects are the BGPPeers by which the node has sessions, the first 100 by name; "mesh" is
	// that of all nodes with each other.
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	Objects []string `json:"objects,omitempty"`
}

// WireGuardStatus is what other nodes need to know to encrypt for a node. A key that is there says
// that the node takes encrypted packets.
type WireGuardStatus struct {
	// PublicKey of the device that carries IPv4, as WireGuard's tools write it.
	// +kubebuilder:validation:MaxLength=44
	PublicKey string `json:"publicKey,omitempty"`
	// PublicKeyIPv6 is the same for IPv6.
	// +kubebuilder:validation:MaxLength=44
	PublicKeyIPv6 string `json:"publicKeyIPv6,omitempty"`
	// NextPublicKey is the one that the node will have instead of PublicKey within seconds, while
	// it changes keys: other nodes are to take packets by it as soon as they come.
	// +kubebuilder:validation:MaxLength=44
	NextPublicKey string `json:"nextPublicKey,omitempty"`
	// NextPublicKeyIPv6 is the same for PublicKeyIPv6.
	// +kubebuilder:validation:MaxLength=44
	NextPublicKeyIPv6 string `json:"nextPublicKeyIPv6,omitempty"`
	// Implementation says who encrypts: "kernel" or "wireguard-go".
	// +kubebuilder:validation:MaxLength=32
	Implementation string `json:"implementation,omitempty"`
	// Peers is how many nodes are sent encrypted packets alone.
	Peers int32 `json:"peers,omitempty"`
	// Clear are the nodes to whose pods packets go in clear, the first 100 of them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Clear []string `json:"clear,omitempty"`
}

// Condition is one aspect of a node's health.
type Condition struct {
	Type   string                 `json:"type"`
	Status metav1.ConditionStatus `json:"status"`
	// Reason is one CamelCase word.
	Reason string `json:"reason,omitempty"`
	// Message is for people: what is wrong, where, and what to do.
	Message            string      `json:"message,omitempty"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
}

// The types of Condition.
const (
	// ConditionReady: pods on this node are connected and enforced.
	ConditionReady = "Ready"
	// ConditionAPIServer: the API server answers.
	ConditionAPIServer = "APIServer"
	// ConditionDataplane: the kernel holds what it should.
	ConditionDataplane = "Dataplane"
	// ConditionConfiguration: every value of the FelixConfigurations is in force.
	ConditionConfiguration = "Configuration"
)

// ReasonChanging is the reason of the condition Dataplane while another data plane is about to
// carry the node's packets.
const ReasonChanging = "Changing"

// DSRFallback names clients for which direct server return does not work.
type DSRFallback struct {
	// Clients is how many there are now.
	Clients int32 `json:"clients"`
	// Addresses of some of them, the latest first.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Addresses []string `json:"addresses,omitempty"`
}

// Drop counts packets that were dropped for one reason by one rule.
type Drop struct {
	Reason  string `json:"reason"`
	Rule    string `json:"rule,omitempty"`
	Packets int64  `json:"packets"`
}

// Problem says that something in an object is not in force as it is written.
type Problem struct {
	// Object is its kind and name: "IPPool default", "NetworkPolicy shop/allow-web".
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object"`
	// Field is the path inside of the object: "spec.cidr". For the environment, the variable's
	// name.
	// +kubebuilder:validation:MaxLength=256
	Field string `json:"field,omitempty"`
	// Value as it was written; its end is left out where it is long.
	// +kubebuilder:validation:MaxLength=256
	Value string `json:"value,omitempty"`
	// Message says what is wrong with it, and what is in force instead.
	// +kubebuilder:validation:MaxLength=1000
	Message string `json:"message"`
	// Action says what to do about it.
	// +kubebuilder:validation:MaxLength=1000
	Action string `json:"action,omitempty"`
}

// NodeStatusList is a list of NodeStatus.
//
// +kubebuilder:object:root=true
type NodeStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeStatus `json:"items"`
}
