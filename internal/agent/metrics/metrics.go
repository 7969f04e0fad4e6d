// SPDX-License-Identifier: Apache-2.0

// Package metrics has those metrics of a node that the agent does not read out of its own state at
// a scrape: how long changes of Services take until the node's kernel has them (Programming), under
// the name that kube-proxy has for it, and what the controller and the fan-out of the same node
// serve on loopback (Neighbours), so that one address of a node is scraped for all of Weir.
package metrics
