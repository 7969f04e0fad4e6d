// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

type schema = map[string]any

// community is aa:nn of 16 bits each, or aa:nn:mm of 32 bits each; numbers that are too large are
// found when the object is read.
const community = `^(0|[1-9][0-9]{0,4}):(0|[1-9][0-9]{0,4})$|^(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9})$`

// adaptFilter says what rules of a BGPFilter may have, with the fields of newer servers.
func adaptFilter(props map[string]any) error {
	for _, list := range []struct {
		name, cidr string
		length     int
	}{
		{"exportV4", `^[0-9.]+(/[0-9]+)?$`, 18}, {"importV4", `^[0-9.]+(/[0-9]+)?$`, 18},
		{"exportV6", `^[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(/[0-9]+)?$`, 49}, {"importV6", `^[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(/[0-9]+)?$`, 49},
	} {
		items, ok := props[list.name].(map[string]any)["items"].(map[string]any)
		if !ok {
			return fmt.Errorf("BGPFilter has no list %s", list.name)
		}
		rule := items["properties"].(map[string]any)
		for field, more := range map[string]schema{
			"cidr":          {"pattern": "^$|" + list.cidr, "maxLength": list.length},
			"action":        {"enum": []any{"Accept", "Reject"}},
			"matchOperator": {"enum": []any{"", "Equal", "NotEqual", "In", "NotIn"}},
			"source":        {"enum": []any{"", "RemotePeers"}},
		} {
			if err := limit(rule, more, field); err != nil {
				return fmt.Errorf("BGPFilter: %w", err)
			}
		}
		asns := func() schema {
			return schema{"type": "array", "maxItems": 32, "items": schema{"x-kubernetes-int-or-string": true}}
		}
		aCommunity := func() schema { return schema{"type": "string", "maxLength": 32, "pattern": community} }
		one := func(field string, of schema) schema {
			return schema{"type": "object", "required": []any{field}, "properties": schema{field: of}}
		}
		priority := func() schema { return schema{"type": "integer", "minimum": 1, "maximum": 2147483646} }
		rule["peerType"] = schema{"type": "string", "enum": []any{"", "eBGP", "iBGP"}}
		rule["communities"] = one("values", schema{"type": "array", "minItems": 1, "maxItems": 1, "items": aCommunity()})
		rule["asPathPrefix"] = asns()
		rule["priority"] = priority()
		rule["operations"] = schema{"type": "array", "minItems": 1, "maxItems": 10, "items": schema{"type": "object",
			"properties": schema{"addCommunity": one("value", aCommunity()), "prependASPath": one("prefix", asns()), "setPriority": one("value", priority())},
			"x-kubernetes-validations": []any{schema{"message": "exactly one operation must be set",
				"rule": "(has(self.addCommunity) ? 1 : 0) + (has(self.prependASPath) ? 1 : 0) + (has(self.setPriority) ? 1 : 0) == 1"}}}}
		items["x-kubernetes-validations"] = []any{
			schema{"message": "cidr and matchOperator must both be set or both be empty",
				"rule": "(has(self.cidr) && self.cidr != '') == (has(self.matchOperator) && self.matchOperator != '')"},
			schema{"message": "cidr is required when prefixLength is set", "rule": "!has(self.prefixLength) || has(self.cidr) && self.cidr != ''"},
			schema{"message": "operations may only be used with action Accept", "rule": "!has(self.operations) || self.action == 'Accept'"},
		}
	}
	return nil
}
