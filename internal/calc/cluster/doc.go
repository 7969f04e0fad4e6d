// SPDX-License-Identifier: Apache-2.0

// Package cluster is the first stage of the calculation: it decides which claims of nodes, blocks
// and pods count, and gives the stages after it a View of the cluster with these alone. Nodes and
// tenants write what is claimed; a claim that takes what is another's is refused and reported.
package cluster
