// SPDX-License-Identifier: Apache-2.0

package main

import "regexp"

// lack is what labs with another CNI plugin have nothing for, with the reason.
type lack struct {
	reason string
	match  *regexp.Regexp
}

// lacks are those of the plugins that --on takes.
var lacks = map[string][]lack{"generic": {}, "aws-vpc-cni": ofClouds, "azure-cni": ofClouds, "azure-cni-overlay": ofClouds}

// ofClouds are those of networks like clouds'.
var ofClouds = []lack{
	// The lab has IPv4 alone.
	{"family", regexp.MustCompile(`\[Feature:(IPv6DualStack|Networking-IPv6)\]`)},
	// Such a network leads to a node what it has given to the node's interfaces, and to nobody what
	// a node claims by ARP.
	{"address", regexp.MustCompile(`\[Feature:LoadBalancer\]|Type LoadBalancer|LoadBalancer [Ss]ervice|service loadbalancer`)},
}

// lacking are those of the specs that a lab has nothing for.
func lacking(of []lack, specs []string) []skip {
	var out []skip
	for _, name := range specs {
		for _, l := range of {
			if l.match.MatchString(name) {
				out = append(out, skip{name, l.reason})
				break
			}
		}
	}
	return out
}
