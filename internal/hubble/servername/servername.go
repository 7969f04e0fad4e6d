// SPDX-License-Identifier: Apache-2.0

// Package servername has how the servers of Hubble's API at agents are called in their certificates, for
// agents, who serve by such a name, and for the controller, which has the certificate signed: below
// the domain of Cilium's agents, so that its programs, and certificates that are made for these, do
// as they are.
package servername

import "strings"

// Domain is what the names are below.
const Domain = "default.hubble-grpc.cilium.io"

// All is the name in a certificate that does for all nodes.
const All = "*." + Domain

// Of is the name in a node's certificate: dots of the node's name are dashes, so that All
// covers it.
func Of(node string) string { return strings.ReplaceAll(node, ".", "-") + "." + Domain }
