// SPDX-License-Identifier: Apache-2.0

// Package scenarios has the scenario files (*.txtar), which say what becomes of packets, and random
// worlds of policies, Services and packets. Its tests play both on the oracle (internal/sim), on
// the loaded eBPF programs (programs) and on nftables in namespaces (wires), for both families:
// whatever one of them does otherwise than the oracle is an error. README.md has the format.
package scenarios
