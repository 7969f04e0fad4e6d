// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"strings"
)

// maxDomain is how long a name of DNS is at most, as text without the last dot (RFC 1035).
const maxDomain = 253

// DomainPattern returns the one form of a domain name of a rule, or of a wildcard "*.example.com",
// which every name that ends in ".example.com" matches, whatever labels are before it, and
// "example.com" does not. The form is in lower case and without the last dot. The error says what
// is wrong.
func DomainPattern(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	rest := strings.TrimPrefix(name, "*.")
	if len(name) > maxDomain {
		return "", errors.New("is longer than a name may be (253 characters)")
	}
	labels := strings.Split(rest, ".")
	if len(labels) < 2 {
		return "", errors.New("has one label alone; a name of two labels or more, or a wildcard as *.example.com, is known")
	}
	for _, l := range labels {
		switch {
		case strings.Contains(l, "*"):
			return "", errors.New("has a wildcard that is not the whole first label")
		case l == "" || len(l) > 63:
			return "", errors.New("has a label that is empty or longer than 63 characters")
		case strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return "", errors.New("has other characters than letters, digits, - and _ (names in other scripts are given as xn--…)")
		}
	}
	return name, nil
}

// DomainMatches reports whether a name, in lower case and without the last dot, matches a pattern.
func DomainMatches(pattern, name string) bool {
	if suffix, wild := strings.CutPrefix(pattern, "*"); wild {
		return len(name) > len(suffix) && strings.HasSuffix(name, suffix)
	}
	return pattern == name
}
