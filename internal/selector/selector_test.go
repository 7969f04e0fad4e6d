// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"strings"
	"testing"
)

func TestMatches(t *testing.T) {
	labels := map[string]string{"role": "db", "env": "prod-eu", "k8s-app": "x", "a.b/c": "", "in": "yes"}
	for in, want := range map[string]bool{
		"":                                 true,
		"all()":                            true,
		"global()":                         true,
		"!all()":                           false,
		"has(role)":                        true,
		"has(a.b/c)":                       true,
		"!has(role)":                       false,
		"! has( nope )":                    true,
		"role == 'db'":                     true,
		`role == "web"`:                    false,
		"nope == ''":                       false,
		"nope != 'x'":                      true,
		"role != 'db'":                     false,
		"role in {'web', \"db\"}":          true,
		"role in {}":                       false,
		"role in {'web',}":                 false,
		"nope in {'web'}":                  false,
		"role not in {'web'}":              true,
		"nope not in {'web'}":              true,
		"role not in {'db'}":               false,
		"in in {'yes'}":                    true,
		"env contains 'od-'":               true,
		"env starts with 'prod'":           true,
		"env ends with 'us'":               false,
		"nope contains ''":                 false,
		"role == 'web' || env != 'x'":      true,
		"all() || all() && !all()":         true,
		"(all() || all()) && !all()":       false,
		"!(role == 'web' && has(env))":     true,
		"!!has(role)&&k8s-app=='x'":        true,
		"has(role)\t&&\n!(env == 'stage')": true,
	} {
		s, err := Parse(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if got := s.Matches(labels); got != want {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() || again.Matches(labels) != want {
			t.Errorf("%q: canonical text %q does not round-trip: %v", in, s, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for in, want := range map[string]string{
		"role":                            `found the end, expected ==, !=, in`,
		"role = 'x'":                      `column 6: found the character '='`,
		"role == x":                       `found "x", expected a string in quotes`,
		"role == 'x":                      "without its closing quote",
		"role in 'x'":                     `expected "{"`,
		"role in {'x' 'y'}":               `expected "}"`,
		"role not {'x'}":                  `"in" after "not"`,
		"role starts 'x'":                 `"with" after "starts"`,
		"(all()":                          `expected ")"`,
		"all() all()":                     `&&, || or the end`,
		"all() &&":                        "a label name",
		"any()":                           `no function "any"`,
		"has()":                           "a label name in has",
		"has('x')":                        "a label name in has",
		"&& all()":                        "a label name",
		"role == 'x' & all()":             "'&'",
		strings.Repeat("!", 80) + "all()": "nested more than",
		strings.Repeat("x", 20000):        "at most 16384",
	} {
		_, err := Parse(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want an error with %q", in, err, want)
		}
	}
}

func TestLabels(t *testing.T) {
	s, err := Parse("has(b) && (a == 'x' || !has(b)) && c not in {'q'}")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Labels(), ","); got != "a,b,c" {
		t.Fatal(got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"all()", "a == 'b' && !has(c)", "x in {'a',\"b\"} || y not in {}", "a starts with 'x'", "((("} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil && !strings.Contains(err.Error(), "at most") && !strings.Contains(err.Error(), "nested") {
			t.Fatalf("%q -> %q: %v", in, s, err)
		}
		if err == nil && again.String() != s.String() {
			t.Fatalf("%q -> %q -> %q", in, s, again)
		}
	})
}
