// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/weir-net/weir/internal/dataplane"

var _ dataplane.Partial = (*Driver)(nil)

// Lacks implements dataplane.Partial. Each of these is said in docs/design/nftables.md.
func (d *Driver) Lacks() map[dataplane.Feature]string {
	out := map[dataplane.Feature]string{
		dataplane.FeatureFragments: "connection tracking puts fragments together first",
		dataplane.FeatureAnswers:   "the kernel words its refusals, and a packet in the middle of a connection is dropped",
		dataplane.FeaturePorts:     "the kernel keeps a source port, or takes any",
		dataplane.FeatureMTU:       "the kernel's own handling of sizes",
		dataplane.FeatureOdd:       "the kernel's own idea of malformed packets",
		dataplane.FeatureErrors:    "the kernel quotes as much as it likes, and tracks fewer kinds of ICMP messages",
		dataplane.FeatureResume:    "connection tracking takes a connection that was reset for ended",
		dataplane.FeatureHandOver:  "connection tracking knows what is not translated, whoever carries it",
		dataplane.FeatureHostOwn:   "to host endpoints, the node's own addresses are those of the tables",
		dataplane.FeatureHostNAT:   "the node's own packets are balanced in any case",
		dataplane.FeatureIPIP:      "the driver makes no IP in IP, and sends VXLAN in its place",
		dataplane.FeatureSCTP:      "connection tracking wants whole chunks with the right tags",
		dataplane.FeatureUntracked: "what doNotTrack allows is tracked: an answer that it says nothing of is evaluated with what it answers",
	}
	if why := d.namesLack(); why != "" {
		out[dataplane.FeatureNames] = why
	}
	return out
}
