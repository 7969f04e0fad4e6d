// SPDX-License-Identifier: Apache-2.0

package wire

// KeyPath asks a node to change its keys of WireGuard: a KeyChange, answered by Keys. It is the one
// question that changes something, with a right of its own (agents/wireguardkey).
const KeyPath = "/wireguardkey"

// KeyChange says which keys are to go.
type KeyChange struct {
	// Replaces are public keys of the node; one that it does not have any more is nothing to do, so
	// that asking again changes no key twice. None are those that it has.
	Replaces []string `json:"replaces,omitempty"`
}

// Keys are those of a node.
type Keys struct {
	Node string `json:"node"`
	// Public are the public keys that the node has.
	Public []string `json:"public"`
	// Changing: some of them are about to be replaced.
	Changing bool `json:"changing"`
}
