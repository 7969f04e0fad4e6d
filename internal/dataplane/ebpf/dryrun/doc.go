// SPDX-License-Identifier: Apache-2.0

// Package dryrun loads the programs a second time, attached to nothing, for packets that nobody
// sends. An Instance shares the maps of desired state with the programs of the node, which it only
// reads, and has its own of what packets leave behind. So it decides as the node does now, and
// changes nothing of it.
package dryrun
