// SPDX-License-Identifier: Apache-2.0

// Package ebpf is the driver that carries a node's state in eBPF maps and programs. Maps, and the
// links that attach the programs, are pinned below bpffs, so that a stopped or replaced agent costs
// no packet. The driver opens maps and programs (load, migrate), writes states into tables (tables,
// family, policy_*), attaches (package attach), cleans tables (package flowtable), and imports
// connections of another data plane (handover_*; package flowhandover). Constants and structures
// are in package abi.
package ebpf
