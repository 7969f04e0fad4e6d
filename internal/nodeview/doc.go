// SPDX-License-Identifier: Apache-2.0

// Package nodeview selects of a cluster what the desired state of one node depends on: its own
// pods, the policies that select them, the pods that these policies' rules can be about, and all of
// what every node needs (nodes, blocks, pools, Services with their endpoints). The state computed
// from the view is the state computed from the whole (internal/calc's TestViewEqualsWhole).
package nodeview
