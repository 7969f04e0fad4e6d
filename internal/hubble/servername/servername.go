// SPDX-License-Identifier: Apache-2.0

// Package servername has how the servers of Hubble's API at agents are called in their
// certificates, for agents, who serve by such a name, and for the controller, which has the
// certificate signed: below the domain of Cilium's agents, so that its programs, and certificates
// that are made for these, do as they are.
package servername

import "strings"

// Domain is what the names are below.
const Domain = "default.hubble-grpc.cilium.io"

// Peers is the name by which hubble-relay asks any agent for the list of nodes.
const Peers = "hubble-peer." + Domain

// Of is the name in a node's certificate: dots of the node's name are dashes.
func Of(node string) string { return strings.ReplaceAll(node, ".", "-") + "." + Domain }

// Certified are the names that a node's certificate has.
func Certified(node string) []string { return []string{Of(node), Peers} }
