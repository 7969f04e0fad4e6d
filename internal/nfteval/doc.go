// SPDX-License-Identifier: Apache-2.0

// Package nfteval evaluates the rules of an nftables table that is in the kernel for a packet,
// without sending one. It reads the rules as the kernel has them (the expressions of
// linux/netfilter/nf_tables.h), asks the kernel for each element of a set that a rule looks up
// (NFT_MSG_GETSETELEM), for connection tracking's entry of the packet and for routes, and does what
// the expressions say. Nothing is written: what a rule would add to a set is left out.
//
// It works in the network namespace of the calling thread. An expression that it does not know is
// an error, never a guess.
package nfteval
