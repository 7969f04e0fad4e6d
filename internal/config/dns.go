// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/model"
)

const (
	maxDNSServers  = 256
	maxDNSExtraTTL = 24 * time.Hour
	dnsPort        = 53
)

// applyDNSServers reads dnsTrustedServers. Programs look for answers at port 53 alone, so no other
// may be given.
func applyDNSServers(e *Effective, text string) ([]string, error) {
	var words []string
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		if err := json.Unmarshal([]byte(text), &words); err != nil {
			return nil, fmt.Errorf("is not a list of DNS servers")
		}
	} else {
		words = strings.Split(text, ",")
	}
	if len(words) > maxDNSServers {
		return nil, fmt.Errorf("has %d DNS servers, and %d are the most", len(words), maxDNSServers)
	}
	out := model.DNSSettings{ExtraTTL: e.Settings.DNS.ExtraTTL}
	for _, w := range words {
		w = strings.TrimSpace(w)
		if service, is := strings.CutPrefix(w, "k8s-service:"); is {
			service, port, ported := strings.Cut(service, ":")
			namespace, name, spaced := strings.Cut(service, "/")
			if !spaced {
				namespace, name = model.ClusterDNS.Namespace, service
			}
			if namespace == "" || name == "" || ported && port != fmt.Sprint(dnsPort) {
				return nil, fmt.Errorf("has %q, and k8s-service:[namespace/]name with no port but %d is known", w, dnsPort)
			}
			out.Services = append(out.Services, model.Name{Namespace: namespace, Name: name})
			continue
		}
		if at, err := netip.ParseAddrPort(w); err == nil && at.Port() == dnsPort {
			w = at.Addr().String()
		}
		a, err := netip.ParseAddr(w)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("has %q, which is neither an IP address, with no port but %d, nor k8s-service:[namespace/]name", w, dnsPort)
		}
		out.Servers = append(out.Servers, a.Unmap())
	}
	e.Settings.DNS = out
	return nil, nil
}

func applyDNSExtraTTL(e *Effective, text string) ([]string, error) {
	d, err := duration(text)
	if err != nil || d < 0 || d > maxDNSExtraTTL {
		return nil, fmt.Errorf("is no duration of 0s..%v", maxDNSExtraTTL)
	}
	e.Settings.DNS.ExtraTTL = d
	return nil, nil
}
