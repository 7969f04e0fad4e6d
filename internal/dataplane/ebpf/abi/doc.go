// SPDX-License-Identifier: Apache-2.0

// Package abi is what the programs and the driver share: the numbers and structures of
// bpf/abi.h, the conversions between them and the addresses, ports and prefixes of Go, and the
// compiled programs. Numbers (enums.go) and structures without addresses are generated from BTF
// (go generate in the folder above). Structures that hold addresses are generic over the family;
// a test compares them with the generated ones of each.
package abi
