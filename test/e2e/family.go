// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"regexp"
)

// family has the addresses by which the lab of one IP family is furnished.
type family struct {
	apiServer string
	// farAddr is the address of the client far away. It shares no /16 with a node: a spec takes a
	// source within the node's /16 for a translated one.
	farAddr        string
	farLAN, farGW  string // the client's address at the router, and the router's
	dns, web       string // what specs look for in the Internet; in the lab the router has them
	loadBalancers  string // for Services: on the nodes' subnet, where nobody else has one
	poolBlock, bit string // bits of the network of a block of these, and of one address
}

var families = map[string]family{
	"": {apiServer: "172.31.1.8:6443", farAddr: "198.51.100.55", farLAN: "172.31.2.55", farGW: "172.31.2.1", dns: "8.8.8.8", web: "8.8.4.4",
		loadBalancers: "172.31.1.96/27", poolBlock: "29", bit: "32"},
	"ipv6": {apiServer: "[fd00:172:31:1::8]:6443", farAddr: "2001:db8:55::55", farLAN: "fd00:172:31:2::55", farGW: "fd00:172:31:2::1",
		dns: "2001:4860:4860::8888", web: "2001:4860:4860::8844", loadBalancers: "fd00:172:31:1::9600/123", poolBlock: "125", bit: "128"},
}

// ip is iproute2 with the family's option.
func (f family) ip() string {
	if netip.MustParseAddr(f.dns).Is6() {
		return "-6"
	}
	return "-4"
}

// onIPv6 are the specs that a lab of IPv6 alone has nothing for.
var onIPv6 = []lack{{"family", regexp.MustCompile(`\[Feature:(IPv6DualStack|Networking-IPv4)\]`)}}
