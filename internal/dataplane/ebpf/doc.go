// SPDX-License-Identifier: Apache-2.0

// Package ebpf is the driver that carries a node's state in eBPF maps and programs. Maps, and the
// links that attach the programs, are pinned below bpffs, so that a stopped or replaced agent costs
// no packet. Programs and maps are opened by package object and attached by package attach, states
// are written by tables (family, policy_*), tables that programs fill are cleaned by flowtable, and
// connections of another data plane imported (handover_*, flowhandover). Constants are in abi.
package ebpf
