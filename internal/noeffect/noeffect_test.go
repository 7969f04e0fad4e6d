// SPDX-License-Identifier: Apache-2.0

package noeffect

import (
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	t.Parallel()
	has := map[string]string{"cni.projectcalico.org/ipAddrsNoIpam": "[]", "cni.projectcalico.org/ipAddrs": "[]", "projectcalico.org/natExcludeService": "true"}
	for kind, want := range map[string][]string{"Pod": {"cni.projectcalico.org/ipAddrsNoIpam"}, "Service": {"projectcalico.org/natExcludeService"}, "Namespace": nil} {
		var got []string
		for _, a := range Of(kind, has) {
			got = append(got, a.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("of a %s: %v, want %v", kind, got, want)
		}
	}
}

func TestFieldsOf(t *testing.T) {
	t.Parallel()
	object := map[string]any{"spec": map[string]any{"prometheusMetricsPort": int64(9094), "healthChecks": "Disabled", "controllers": map[string]any{
		"node": map[string]any{"syncLabels": "Enabled", "leakGracePeriod": "1h"}, "policy": map[string]any{}, "namespace": nil}}}
	fields, values := FieldsOf("KubeControllersConfiguration", object)
	var got []string
	for i, f := range fields {
		got = append(got, f.Name()+"="+values[i])
	}
	if want := []string{"spec.healthChecks=Disabled", "spec.controllers.node.leakGracePeriod=1h"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if fields, _ := FieldsOf("IPPool", object); len(fields) > 0 {
		t.Errorf("of an IPPool: %v", fields)
	}
}
