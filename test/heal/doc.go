// SPDX-License-Identifier: Apache-2.0

// Package heal tests that a node comes back whatever its tables say: a real agent starts where the
// tables that an earlier run left, or somebody else wrote, lead away from a real API server.
package heal
