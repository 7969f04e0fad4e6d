// SPDX-License-Identifier: Apache-2.0

// Package policy is the stage of the calculation that compiles policies: for each list of policies
// that binds an endpoint of the node, what it decides about each class of peers by protocol and
// port, as entries of two look-ups. What is too large, or more than a namespace's share, is refused
// and cut off. It explains, too, which rule decides about a packet.
package policy
