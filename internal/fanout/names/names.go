// SPDX-License-Identifier: Apache-2.0

// Package names has what the fan-out, the agents and the controller call each other's objects and
// ports.
package names

import "github.com/weir-net/weir/internal/model"

const (
	// Name is that of the Deployment, of its service account, of the EndpointSlice, and the value
	// of the label k8s-app of its pods.
	Name = "weir-fanout"
	// ServerName is what replicas have certificates for, and the audience of the tokens by which
	// agents prove themselves.
	ServerName = "weir-fanout.kube-system.svc"
	// Port is where replicas listen on their nodes, for agents.
	Port = model.FanOutPort
	// HealthAddr is where a replica answers the probes of its node's kubelet.
	HealthAddr = "127.0.0.1:9095"
	// Slice and Slice6 are the EndpointSlices with the replicas that are ready. Agents read these
	// by name: there is no Service.
	Slice  = "weir-fanout"
	Slice6 = "weir-fanout-ipv6"
)
