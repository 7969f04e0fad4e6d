// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strings"
	"testing"
)

func TestDomainPattern(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Example.COM": "example.com", "example.com.": "example.com", "*.Example.com.": "*.example.com", "_srv.a-b.c1": "_srv.a-b.c1",
		"com": "", "": "", ".": "", "*": "", "*.com": "", "a..b": "", "www.*.com": "", "w*.example.com": "", "exa mple.com": "", "ex\u00e4mple.com": "",
		"0123456789012345678901234567890123456789012345678901234567890123.com": "",
	} {
		got, err := DomainPattern(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestCalicoDomainPattern(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Example.COM.": "example.com", "*.Example.com": "*.example.com", "update.*.example.com": "update.*.example.com", "www.google.*": "www.google.*",
		"intranet": "intranet", "*.com": "*.com", "*": "", "": "", "*.*.com": "", "w*.example.com": "", "a..b": "", ".com": "", "a.*.": "a.*",
		strings.Repeat("a23456789.", 24) + "*.com": strings.Repeat("a23456789.", 24) + "*.com", strings.Repeat("a23456789.", 24) + "b.*.com": "",
	} {
		got, err := CalicoDomainPattern(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestDomainMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"example.com", "example.com", true}, {"example.com", "www.example.com", false}, {"*.example.com", "www.example.com", true},
		{"update.*.com", "update.a.com", true}, {"update.*.com", "update.a.b.com", true}, {"update.*.com", "update.com", false}, {"www.google.*", "www.google.co.uk", true},
		{"www.google.*", "www.google", false}, {"update.*.com", "xupdate.a.com", false},
		{"*.example.com", "a.b.example.com", true}, {"*.example.com", "example.com", false}, {"*.example.com", ".example.com", false}, {"*.example.com", "badexample.com", false},
	} {
		if got := DomainMatches(c.pattern, c.name); got != c.want {
			t.Errorf("%s of %s: %v", c.pattern, c.name, got)
		}
	}
}
