// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"testing"
)

func TestServiceExternalIPs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]netip.Prefix{
		"none": {}, "[]": {}, "192.0.2.0/24": {netip.MustParsePrefix("192.0.2.0/24")},
		"2001:db8::/32, 192.0.2.7": {netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::/32")},
	} {
		got := New("n0", []string{"FELIX_SERVICEEXTERNALIPS=" + text}, nil).Resolve()
		if list := got.Settings.ServiceExternalIPs; list == nil || !slices.Equal(list, want) || len(got.Problems)+len(got.Unsupported) > 0 {
			t.Errorf("%q: %v, want %v; %v %v", text, list, want, got.Problems, got.Unsupported)
		}
	}
	if got := New("n0", nil, nil).Resolve(); got.Settings.ServiceExternalIPs != nil {
		t.Errorf("unset: %v", got.Settings.ServiceExternalIPs)
	}
	if got := New("n0", []string{"FELIX_ServiceExternalIPs=::ffff:10.0.0.0/104"}, nil).Resolve(); len(got.Problems) != 1 {
		t.Errorf("an IPv4-mapped network: %v", got.Problems)
	}
}

// Ports that were configured otherwise are protected alongside those of the defaults.
func TestAgentPorts(t *testing.T) {
	t.Parallel()
	got := New("n0", []string{"FELIX_PROMETHEUSMETRICSPORT=19091", "FELIX_HEALTHPORT=19099", "FELIX_BPFKUBEPROXYHEALTHZPORT=0"}, nil).Resolve()
	if want := []uint16{5473, 5474, 5475, 9091, 9099, 10249, 10256, 19091, 19099}; !slices.Equal(got.Settings.AgentPorts, want) {
		t.Errorf("%v, want %v", got.Settings.AgentPorts, want)
	}
}
