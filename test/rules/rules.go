// SPDX-License-Identifier: Apache-2.0

// Package rules holds the rules of this repository that no compiler checks, as tests: who may
// import whom, a comment on every package, files of one concept.
package rules
