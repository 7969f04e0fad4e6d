// SPDX-License-Identifier: Apache-2.0

// Package services writes Services into maps: frontends, lists of backends by slot, live backends,
// Maglev tables (Tables) and the ports that any of them has (Ports). Of a state that was made from
// the one before only what differs is looked at, and a change moves as few backends as possible. It
// also ends the UDP sockets of host processes whose backend is gone (Lost).
package services
