// SPDX-License-Identifier: Apache-2.0

// Package cluster tries a cluster of one node: pods, Services, names and policy, on either data
// plane. Its tests have the build tag lab, need a lab without workers (weir-lab up --workers 0),
// and wait long enough for an emulated processor: `make e2e-kernels` runs them in Debian's kernels.
package cluster
