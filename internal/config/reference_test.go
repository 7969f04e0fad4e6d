// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

// TestEveryFieldInForceIsDescribed holds the lines of docs/reference/settings.md against the table
// of fields.
func TestEveryFieldInForceIsDescribed(t *testing.T) {
	for i := range fields {
		f := &fields[i]
		if doc, inForce := docs[f.name], f.apply != nil; inForce != (doc != "") {
			t.Errorf("field %s: in force %t, described by %q", f.name, inForce, doc)
		}
	}
	for name := range docs {
		if byName[name] == nil {
			t.Errorf("%s is described and is no field", name)
		}
	}
	if got := len(All()); got != len(fields) {
		t.Errorf("All returns %d fields of %d", got, len(fields))
	}
}
