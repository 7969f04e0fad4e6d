// SPDX-License-Identifier: Apache-2.0

// Package nodeview selects of a cluster what the desired state of one node depends on: its own
// pods, the policies that select them, the pods that these policies' rules can be about, and all of
// what every node needs (nodes, blocks, pools, Services with their endpoints, and so on).
//
//	model.Changes ──► Index ──► Node, one for each that asks ──► model.Changes of its view
//
// An Index follows the cluster once for all nodes: a change costs what it changes and the nodes
// that it concerns. Pods that rules cannot tell apart are one group, and what rules ask is asked of
// groups. The state computed from a view is the state computed from the whole (internal/calc,
// TestViewEqualsWhole).
package nodeview
