// SPDX-License-Identifier: Apache-2.0

package dataplane

import "maps"

// Feature is a part of docs/design/datapath.md that not every driver carries.
type Feature string

// The features. A driver that does not say otherwise carries all of them.
const (
	FeatureHandOn    Feature = "hand-on"      // an outside client's packets go on untranslated to the backend's node
	FeatureViaTunnel Feature = "via-tunnel"   // what a node sent through the tunnel with its own address is answered through it
	FeatureFragments Feature = "fragments"    // each fragment is carried as it came, in any order
	FeatureAnswers   Feature = "answers"      // what is refused is answered as "Answers" says, to the letter
	FeaturePorts     Feature = "ports"        // a source port that is changed becomes one of the range that is set
	FeatureMTU       Feature = "mtu"          // "Size": packets that are too large, segment sizes
	FeatureOdd       Feature = "odd"          // malformed and odd packets are distinguished as "Step 0" says
	FeatureErrors    Feature = "errors"       // ICMP errors are carried to the letter
	FeatureResume    Feature = "resume"       // a connection that policy ended goes on where policy allows it again
	FeatureHostNAT   Feature = "host-nat"     // bpfHostNetworkedNATWithoutCTLB says whether the node's own packets are balanced
	FeatureSCTP      Feature = "sctp"         // of SCTP the first chunk of a packet alone decides
	FeatureHosts     Feature = "hosts"        // host endpoints, defaultEndpointToHostAction
	FeatureHandOver  Feature = "hand-over"    // while another data plane takes the place of this one, what has no flow passes
	FeatureHostOwn   Feature = "host-own"     // to host endpoints, what the kernel keeps is the node's own, also where no table has the address
	FeatureIPIP      Feature = "ipip"         // ipipMode of pools
	FeatureNames     Feature = "domain-names" // policy by domain name
	FeatureUntracked Feature = "untracked"    // what host endpoints say of each packet by itself (doNotTrack)
)

// Features are all of them.
var Features = []Feature{FeatureHandOn, FeatureViaTunnel, FeatureFragments, FeatureAnswers,
	FeaturePorts, FeatureMTU, FeatureOdd, FeatureErrors, FeatureResume, FeatureHostNAT, FeatureSCTP, FeatureHosts, FeatureHandOver, FeatureHostOwn, FeatureUntracked, FeatureIPIP, FeatureNames}

// Partial is a Driver that does not carry everything.
type Partial interface {
	// Lacks returns the features that it does not carry, and why.
	Lacks() map[Feature]string
}

// Lacks returns what a driver does not carry.
func Lacks(d Driver) map[Feature]string {
	if p, ok := d.(Partial); ok {
		return maps.Clone(p.Lacks())
	}
	return nil
}
