// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// What somebody believes to be protected, and is not, makes the node degraded: it is a problem, not
// a note.
func TestHostileIneffectiveProtectionIsAProblem(t *testing.T) {
	hostile.Record(t, "a setting of protection that has no effect passes for one that has", hostile.Operator, hostile.ControlPlane, hostile.Both)
	for _, c := range []struct{ field, env, value string }{
		{"nftablesFilterAllowAction", "FELIX_NFTABLESFILTERALLOWACTION", "RETURN"},
	} {
		byEnv, bySpec := New("n1", []string{c.env + "=" + c.value}, nil), New("n1", nil, nil)
		bySpec.Set("node.n1", map[string]any{c.field: c.value})
		for where, r := range map[string]*Resolver{"spec." + c.field: bySpec, c.env: byEnv} {
			got := r.Resolve()
			if len(got.Problems) != 1 || got.Problems[0].Field != where || !strings.Contains(got.Problems[0].Message, "has no effect") || got.Problems[0].Action == "" {
				t.Errorf("%s = %s: problems %v, unsupported %v", where, c.value, got.Problems, got.Unsupported)
			}
		}
	}
	// Of what nodes exchange nothing is encrypted where nothing else is.
	for on, want := range map[string]int{`{"wireguardHostEncryptionEnabled":true}`: 1, `{"wireguardHostEncryptionEnabled":true,"wireguardEnabledV6":true}`: 0, `{"wireguardHostEncryptionEnabled":false}`: 0} {
		r := New("n1", nil, nil)
		r.Set("default", spec(t, on))
		if got := r.Resolve(); len(got.Problems) != want || want > 0 && !strings.Contains(got.Problems[0].Message, "has no effect") {
			t.Errorf("%s: problems %v", on, got.Problems)
		}
	}
	for _, off := range []string{"FELIX_WIREGUARDHOSTENCRYPTIONENABLED=false", "FELIX_WIREGUARDHOSTENCRYPTIONENABLED=0", "FELIX_WIREGUARDENABLEDV6=no", "FELIX_BPFJITHARDENING=Strict"} {
		if got := New("n1", []string{off}, nil).Resolve(); len(got.Problems)+len(got.Unsupported) > 0 {
			t.Errorf("%s is complained about: %v %v", off, got.Problems, got.Unsupported)
		}
	}
}

// The settings of WireGuard are in force as they are written; while it is on, its ports are open
// whatever host endpoints say.
func TestWireGuardSettings(t *testing.T) {
	r := New("n1", []string{"FELIX_WIREGUARDSTRICT=true"}, nil)
	r.Set("default", spec(t, `{"wireguardEnabled":true,"wireguardInterfaceName":"wg-a","wireguardInterfaceNameV6":"wg-b","wireguardListeningPort":51000,"wireguardListeningPortV6":51001,`+
		`"wireguardMTU":1400,"wireguardMTUV6":1380,"wireguardKeepAlive":"25s","wireguardRoutingRulePriority":70,"wireguardHostEncryptionEnabled":true}`))
	got := r.Resolve()
	want := model.WireGuardSettings{IPv4: model.WireGuardDevice{Enabled: true, Interface: "wg-a", Port: 51000, MTU: 1400},
		IPv6: model.WireGuardDevice{Interface: "wg-b", Port: 51001, MTU: 1380}, RulePriority: 70, KeepAlive: 25, Strict: true, Hosts: true}
	if got.Settings.WireGuard != want || len(got.Problems)+len(got.Unsupported) > 0 {
		t.Errorf("%+v, %v, %v", got.Settings.WireGuard, got.Problems, got.Unsupported)
	}
	open, off := model.Failsafe{Protocol: model.ProtocolUDP, Port: 51000}, model.Failsafe{Protocol: model.ProtocolUDP, Port: 51001}
	for _, list := range [][]model.Failsafe{got.Settings.FailsafeIn, got.Settings.FailsafeOut} {
		if !slices.Contains(list, open) || slices.Contains(list, off) {
			t.Errorf("failsafe ports %v", list)
		}
	}
	if def := Default().Settings; def.WireGuard != model.DefaultWireGuard() || slices.Contains(def.FailsafeIn, open) {
		t.Errorf("by default %+v", def.WireGuard)
	}
	for _, bad := range []string{`{"wireguardInterfaceName":"no/name"}`, `{"wireguardListeningPort":0}`, `{"wireguardKeepAlive":"1500ms"}`, `{"wireguardKeepAlive":"24h"}`,
		`{"wireguardMTU":100}`, `{"wireguardRoutingRulePriority":32766}`} {
		r := New("n1", nil, nil)
		r.Set("default", spec(t, bad))
		if got := r.Resolve(); len(got.Problems) != 1 || got.Settings.WireGuard != model.DefaultWireGuard() {
			t.Errorf("%s: %v, %+v", bad, got.Problems, got.Settings.WireGuard)
		}
	}
}

// A value that is none changes nothing of what is in force, and one that weakens nothing is not put
// in the place of a good one.
func TestHostileBadValueChangesNothing(t *testing.T) {
	hostile.Record(t, "a value that is none replaces a setting in force", hostile.Operator, hostile.ControlPlane, hostile.Both)
	r := New("n1", nil, nil)
	r.Set("default", spec(t, `{"defaultEndpointToHostAction":"DROP","failsafeInboundHostPorts":[{"protocol":"tcp","port":22}],"vxlanPort":4790}`))
	want := r.Resolve().Effective
	for _, bad := range []string{`{"defaultEndpointToHostAction":"Drop it","failsafeInboundHostPorts":[{"protocol":"tcp","port":22}],"vxlanPort":4790}`,
		`{"defaultEndpointToHostAction":"DROP","failsafeInboundHostPorts":"any","vxlanPort":4790}`,
		`{"defaultEndpointToHostAction":"DROP","failsafeInboundHostPorts":[{"protocol":"tcp","port":22}],"vxlanPort":70000}`} {
		r.Set("default", spec(t, bad))
		for _, of := range []*Resolver{r, restarted(t, r, bad)} {
			got := of.Resolve()
			if !reflect.DeepEqual(got.Effective, want) || len(got.Problems) != 1 {
				t.Errorf("%s: %+v; %v", bad, got.Settings, got.Problems)
			}
		}
	}
}

// What says how metrics are protected is in force as it is written, or metrics are not served:
// agents look at it.
func TestMetricsProtection(t *testing.T) {
	r := New("n1", nil, nil)
	r.Set("default", spec(t, `{"prometheusMetricsEnabled":true,"prometheusMetricsCertFile":"/c","prometheusMetricsKeyFile":"/k","prometheusMetricsCAFile":"/a","prometheusMetricsClientAuth":"requireAndVerifyClientCert"}`))
	got := r.Resolve()
	if want := (MetricsTLS{CAFile: "/a", CertFile: "/c", KeyFile: "/k", ClientAuth: RequireAndVerifyClientCert}); got.Metrics.TLS != want || len(got.Problems)+len(got.Unsupported) > 0 {
		t.Errorf("%+v, %v, %v", got.Metrics, got.Problems, got.Unsupported)
	}
	r.Set("default", spec(t, `{"prometheusMetricsEnabled":true,"prometheusMetricsClientAuth":"Require"}`))
	if got := r.Resolve(); got.Metrics.TLS.ClientAuth != "Require" || !got.Metrics.TLS.Wanted() {
		t.Errorf("a value that is none is forgotten: %+v", got.Metrics)
	}
	if Default().Metrics.TLS.Wanted() {
		t.Error("TLS is asked for by default")
	}
}
