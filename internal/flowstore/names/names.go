// SPDX-License-Identifier: Apache-2.0

// Package names has what the store of flow records, the agents and the controller call each other's
// objects and ports.
package names

import "github.com/weir-net/weir/internal/model"

const (
	// Name is that of the Deployment, of its Service and its service account, and the value of the
	// label k8s-app of its pod.
	Name = "weir-flows"
	// Namespace is where they are.
	Namespace = "kube-system"
	// User is whom the store is to the API server.
	User = "system:serviceaccount:" + Namespace + ":" + Name
	// ServerName is what the store has a certificate for, and the audience of the tokens by which
	// agents prove themselves.
	ServerName = Name + "." + Namespace + ".svc"
	// Port is where the store listens on its node, for agents.
	Port = model.FlowStorePort
	// HealthAddr is where it answers the probes of its node's kubelet, and serves its metrics.
	HealthAddr = "127.0.0.1:9096"
)
