// SPDX-License-Identifier: Apache-2.0

// Package abi is what the programs and the driver share: the constants and structures of
// bpf/abi.h, the conversions between them and the addresses, ports and prefixes of Go, and the
// compiled programs. Structures that hold addresses are generic over the family; those without
// are generated from the objects' BTF (go generate in the folder above). Tests compare the
// constants with the header, and the generic structures with the generated ones.
package abi
