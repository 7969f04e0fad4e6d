// SPDX-License-Identifier: Apache-2.0

// Package ebpf is the driver that carries a node's state in eBPF maps and programs. Maps, and the
// links that attach the programs, are pinned below bpffs, so that a stopped or replaced agent costs
// no packet. The driver opens programs and maps (package object), applies states to them (tables)
// and attaches (attach), in an order by which no packet is allowed that should not be; it repairs
// what others break, imports connections of another data plane, and reports.
package ebpf

//go:generate -command compile go run github.com/cilium/ebpf/cmd/bpf2go@v0.22.0 -cc clang-19 -strip llvm-strip-19 -target bpfel -output-dir abi -go-package abi -type addr_value -type prefix_key -type route_value -type source_key -type gateway_key -type egress_key -type gateway_list -type svc_key -type svc_value -type range_key -type backend_key -type backend -type live_key -type affinity_key -type affinity_value -type policy_key -type policy_value -type host_key -type host_side -type host_value -type flow_key -type flow_value -type settings -type link_key -type port_bits -type sock_key -type sock_value -type dsr_tries -type drop_key -type drop_value -type staged_value -type event -type flow_record -type name_key -type name_match -type name_set_key -type name_pod -type name_addr -type named_key -type named_slot -type named_value -type name_question -type limit_key -type limit -type departure -type conn_key -type conn -type name_reader -type name_stream -type name_said -type name_waits
//go:generate compile Weir ../../../bpf/weir.c -- -DWEIR_FAMILY=4 -I../../../bpf -I/usr/include/x86_64-linux-gnu -O2 -Wall -Werror
//go:generate compile Weir6 ../../../bpf/weir.c -- -DWEIR_FAMILY=6 -I../../../bpf -I/usr/include/x86_64-linux-gnu -O2 -Wall -Werror
//go:generate go run ../../../hack/gen-abi ../../../bpf/abi_enums.c abi/enums.go -DWEIR_FAMILY=4 -I../../../bpf -I/usr/include/x86_64-linux-gnu
