// SPDX-License-Identifier: Apache-2.0

// Package offline has programs and maps in the kernel that are attached to nothing and pinned
// nowhere, for tests and benchmarks that run single programs by BPF_PROG_TEST_RUN. States are
// written to the maps as the driver does.
package offline
