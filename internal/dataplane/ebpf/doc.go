// Package ebpf is the driver that carries a node's state in eBPF maps and programs. Maps, and the
// links that attach the programs, are pinned below bpffs, so that a stopped or replaced agent costs
// no packet.
package ebpf
