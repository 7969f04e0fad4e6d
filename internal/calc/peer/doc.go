// SPDX-License-Identifier: Apache-2.0

// Package peer knows who the other ends of policies' rules are. What rules ask about an address are
// atoms, and the addresses of which the same atoms are true are a class: what policy decides it
// decides for classes. It follows the pods, networks and Services that rules name.
package peer
