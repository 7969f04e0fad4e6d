// SPDX-License-Identifier: Apache-2.0

// Package plantest reads recorded clusters for tests of plans, and looks up what a plan found.
package plantest

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/migrate/plan"
)

// Objects are those of testdata/cluster.yaml, in which a text is replaced by another one.
func Objects(t *testing.T, old, with string) []*unstructured.Unstructured {
	t.Helper()
	raw, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), old) {
		t.Fatalf("%q is not recorded", old)
	}
	objects, err := deploy.Parse([]byte(strings.Replace(string(raw), old, with, 1)))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Find returns what a plan found about a field of an object, nil for nothing.
func Find(p *plan.Plan, object, field string) *plan.Finding {
	for i, f := range p.Findings {
		if f.Object == object && f.Field == field {
			return &p.Findings[i]
		}
	}
	return nil
}
