// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"
)

// inShort are the tests that -short plays: one for each thing that a node does with packets. What
// it leaves out is another way into the same code, an attack, or a wait for a time limit: make unit
// plays all.
var inShort = map[string]bool{
	"TestPods":                       true, // routes, and the programs at both ends of a veth
	"TestVXLAN":                      true,
	"TestServices":                   true, // by the packet and by the socket
	"TestNodePortKeepsTheClient":     true, // tunnel and DSR
	"TestModeChangeKeepsConnections": true,
	"TestPolicy":                     true,
	"TestHostEndpoint":               true,
	"TestFragments":                  true,
	"TestNoBackend":                  true, // what Weir answers by itself
	"TestSpoofedSource":              true,
	"TestDriverRestart":              true,
	"TestSwitch":                     true, // eBPF to nftables and back under traffic
	"TestSeveralAddresses":           true,
}

// skipInShort ends a test that -short leaves out, before it makes a network.
func skipInShort(t *testing.T) {
	t.Helper()
	if name, _, _ := strings.Cut(t.Name(), "/"); testing.Short() && !inShort[name] {
		t.Skip("not with -short")
	}
}
