// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"testing"

	"sigs.k8s.io/yaml"

	egressv3 "github.com/weir-net/weir/api/egress/v3"
)

// A policy is read as it is written, or not at all: of one with a rule that cannot be read no other
// rule counts.
func TestConvertEgressPolicy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ spec, want, field string }{
		{`{}`, "[]", ""},
		{`{rules: [{destination: {cidr: 10.0.0.0/8}, description: local}, {destination: {cidr: 11.0.0.1}, gateway: {namespaceSelector: "a == 'b'", selector: "has(c)", maxNextHops: 2}}]}`,
			"[{10.0.0.0/8 true   0 false} {11.0.0.1/32 false has(c) a == 'b' 2 false}]", ""},
		{`{rules: [{gateway: {selector: "has(c)"}, gatewayPreference: PreferNodeLocal}]}`, "[{0.0.0.0/0 false has(c)  0 true} {::/0 false has(c)  0 true}]", ""},
		{`{rules: [{destination: {}, gateway: {}, gatewayPreference: None}, {destination: {cidr: "2001:db8::1/32"}}]}`,
			"[{0.0.0.0/0 false   0 false} {::/0 false   0 false} {2001:db8::/32 true   0 false}]", ""},
		{`{rules: [{}, {destination: {cidr: 10.0.0}}]}`, "[]", "spec.rules[1].destination.cidr"},
		{`{rules: [{}, {destination: {cidr: 0.0.0.0/0}, gateway: {}}]}`, "[]", "spec.rules[1].destination.cidr"},
		{`{rules: [{destination: {cidr: 10.0.0.0/8}}, {destination: {cidr: 10.1.0.0/8}, gateway: {}}]}`, "[]", "spec.rules[1].destination.cidr"},
		{`{rules: [{gateway: {selector: "("}}]}`, "[]", "spec.rules[0].gateway.selector"},
		{`{rules: [{gateway: {namespaceSelector: "("}}]}`, "[]", "spec.rules[0].gateway.namespaceSelector"},
		{`{rules: [{gateway: {maxNextHops: -1}}]}`, "[]", "spec.rules[0].gateway.maxNextHops"},
		{`{rules: [{gateway: {}, gatewayPreference: Near}]}`, "[]", "spec.rules[0].gatewayPreference"},
		{`{rules: [{gatewayPreference: PreferNodeLocal}]}`, "[]", "spec.rules[0].gatewayPreference"},
	} {
		p := egressv3.EgressGatewayPolicy{}
		if err := yaml.UnmarshalStrict([]byte(test.spec), &p.Spec); err != nil {
			t.Fatal(err)
		}
		p.Name = "out"
		got, problems := ConvertEgressPolicy(&p)
		if got.Name != "out" || fmt.Sprint(got.Rules) != test.want || len(problems) == 0 != (test.field == "") || len(problems) > 0 && problems[0].Field != test.field {
			t.Errorf("%s: %v, want %s; problems %v", test.spec, got.Rules, test.want, problems)
		}
	}
}
