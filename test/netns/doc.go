// SPDX-License-Identifier: Apache-2.0

// Package netns tests drivers with real sockets in network namespaces: nodes with pods, and clients
// outside, on one switch. Each node has a process that runs the driver; calc makes its states.
package netns
