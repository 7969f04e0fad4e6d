// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

func TestDNSServers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*model.DNSSettings{
		"k8s-service:kube-dns":             {Services: []model.Name{model.ClusterDNS}},
		"k8s-service:openshift-dns/dns:53": {Services: []model.Name{{Namespace: "openshift-dns", Name: "dns"}}},
		`["192.0.2.1", "[2001:db8::1]:53", "k8s-service:kube-dns"]`: {Servers: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
			Services: []model.Name{model.ClusterDNS}},
		"192.0.2.1:5353": nil, "k8s-service:kube-dns:5353": nil, "k8s-service:": nil, "k8s-service:a/": nil, "dns.example.com": nil, "": nil, "fe80::1%eth0": nil,
	} {
		var e Effective
		_, err := applyDNSServers(&e, text)
		if (err == nil) != (want != nil) || want != nil && !reflect.DeepEqual(e.Settings.DNS, *want) {
			t.Errorf("%s: %+v, %v", text, e.Settings.DNS, err)
		}
	}
	e := Effective{}
	if _, err := applyDNSExtraTTL(&e, "90s"); err != nil || e.Settings.DNS.ExtraTTL != 90*time.Second {
		t.Errorf("%v, %v", e.Settings.DNS, err)
	}
	for _, text := range []string{"-1s", "25h", "soon"} {
		if _, err := applyDNSExtraTTL(&e, text); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}
