// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// No field that the published type has is taken for a misspelt one, in a FelixConfiguration or in
// the environment.
func TestEveryPublishedFieldIsKnown(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[v3.FelixConfigurationSpec]()
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		f := byName[name]
		if f == nil {
			t.Errorf("%s is not known", name)
			continue
		}
		if env := of.Field(i).Tag.Get("confignamev1"); env != "" && byEnv[strings.ToLower(env)] != f {
			t.Errorf("%s is not known in the environment as %s", name, env)
		}
	}
}

func TestNotApplicable(t *testing.T) {
	t.Parallel()
	r := New("n1", []string{"FELIX_IPTABLESMARKMASK=0xff000000", "FELIX_MISSPELT=1"}, nil)
	r.Set("default", map[string]any{"iptablesBackend": "NFT", "logSeverityScreen": "Info", "openstackRegion": "a", "iptablesBackendd": "NFT"})
	got := r.Resolve()
	all := strings.Join(got.Unsupported, "\n")
	for _, want := range []string{
		"FELIX_MISSPELT", "spec.iptablesBackendd = NFT: not known to Weir yet, or misspelt", "spec.iptablesBackend = NFT: not applicable: " + noIptables,
		"FELIX_IPTABLESMARKMASK = 0xff000000: not applicable", "spec.openstackRegion = a: not applicable: " + noOpenStack,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q:\n%s", want, all)
		}
	}
	if len(got.Unsupported) != 5 || len(got.Problems) > 0 {
		t.Errorf("%d lines, problems %v:\n%s", len(got.Unsupported), got.Problems, all)
	}
}
