// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"slices"
	"strings"
)

// maxDomain is how long a name of DNS is at most, as text without the last dot (RFC 1035).
const maxDomain = 253

// maxDomainHead is how much of a name may be before a wildcard: what the data plane's tables hold.
const maxDomainHead = 240

// DomainPattern returns the one form of a domain name of a rule, or of a wildcard "*.example.com",
// which every name that ends in ".example.com" matches, whatever labels are before it, and
// "example.com" does not. The form is in lower case and without the last dot. The error says what
// is wrong.
func DomainPattern(text string) (string, error) {
	name, err := domainLabels(text)
	labels := strings.Split(strings.TrimPrefix(name, "*."), ".")
	switch {
	case err != nil:
		return "", err
	case len(labels) < 2:
		return "", errors.New("has one label alone; a name of two labels or more, or a wildcard as *.example.com, is known")
	case slices.Contains(labels, "*"):
		return "", errors.New("has a wildcard that is not the whole first label")
	}
	return name, nil
}

// CalicoDomainPattern is DomainPattern for projectcalico.org, where the wildcard may be any one
// label of the name, for one label or several: "*.example.com", "update.*.example.com",
// "www.example.*".
func CalicoDomainPattern(text string) (string, error) {
	name, err := domainLabels(text)
	head, _, _ := strings.Cut(name, "*")
	switch {
	case err != nil:
		return "", err
	case name == "*":
		return "", errors.New("is every name; a rule without domains is about every address")
	case strings.Count(name, "*") > 1:
		return "", errors.New("has more than one wildcard")
	case len(head) > maxDomainHead && len(head) < len(name):
		return "", errors.New("has more than 240 characters before its wildcard")
	}
	return name, nil
}

// domainLabels returns a name in lower case and without the last dot, whose labels are those of
// names, or wildcards.
func domainLabels(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if len(name) > maxDomain {
		return "", errors.New("is longer than a name may be (253 characters)")
	}
	for l := range strings.SplitSeq(name, ".") {
		switch {
		case l == "*":
		case strings.Contains(l, "*"):
			return "", errors.New("has a wildcard that is not a whole label")
		case l == "" || len(l) > 63:
			return "", errors.New("has a label that is empty or longer than 63 characters")
		case strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return "", errors.New("has other characters than letters, digits, - and _ (names in other scripts are given as xn--…)")
		}
	}
	return name, nil
}

// SplitDomain returns what is before and behind the wildcard of a pattern, with the dots; wild is
// false of one that has none.
func SplitDomain(pattern string) (head, tail string, wild bool) {
	return strings.Cut(pattern, "*")
}

// DomainMatches reports whether a name, in lower case and without the last dot, matches a pattern.
func DomainMatches(pattern, name string) bool {
	head, tail, wild := SplitDomain(pattern)
	if !wild {
		return pattern == name
	}
	return len(name) > len(head)+len(tail) && strings.HasPrefix(name, head) && strings.HasSuffix(name, tail)
}
