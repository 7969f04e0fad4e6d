// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"time"
)

// DNSSettings are whose answers policy by domain name is made from, and for how long.
type DNSSettings struct {
	// Servers and Services are dnsTrustedServers: addresses, and Services whose addresses and
	// endpoints are meant.
	Servers  []netip.Addr
	Services []Name
	// ExtraTTL is dnsExtraTTL: for how long an address counts after its time to live.
	ExtraTTL time.Duration
}

// ClusterDNS is the Service by which pods ask for names, as Kubernetes calls it.
var ClusterDNS = Name{Namespace: "kube-system", Name: "kube-dns"}
