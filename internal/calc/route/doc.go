// SPDX-License-Identifier: Apache-2.0

// Package route is the stage of the calculation that makes the node's settings, its routes to pools
// and blocks, and what the node knows of single addresses.
package route
