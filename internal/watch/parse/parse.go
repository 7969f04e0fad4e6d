// SPDX-License-Identifier: Apache-2.0

// Package parse is what conversions of the API's objects have in common: it reads the name of an
// object, and the addresses and CIDRs that are written in its fields, and collects the problems
// that are found in it. It knows no kind of object: conversions of kinds are in package watch and
// in those below it, which import this one. What is wrong in a field is reported with the
// field, the value and what to do; whether the rest of the object counts is up to the conversion.
package parse

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// Finding collects the problems of one object. They are kept for as long as the object is there,
// and an annotation may have 256 KiB.
type Finding struct {
	object string
	List   []weirv1.Problem
}

// NewFinding returns the finding of an object, without a problem.
func NewFinding(kind string, o metav1.Object) *Finding {
	return &Finding{object: kind + " " + NameOf(o).String()}
}

// Add adds a problem with a field.
func (f *Finding) Add(field, value, message, action string) {
	f.List = append(f.List, weirv1.Problem{Object: f.object, Field: field, Value: value, Message: message, Action: action}.Clip())
}

// NameOf returns the name of an object in its namespace.
func NameOf(o metav1.Object) model.Name {
	return model.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Addr parses an address without a zone; IPv4-mapped ones become IPv4.
func Addr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone", text)
	}
	return a.Unmap(), nil
}

// Prefix parses a CIDR; an address alone is one with all its bits. Bits beyond the length are
// refused when exact is set and cleared otherwise.
func Prefix(text string, exact bool) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err2 := Addr(text)
		if err2 != nil || exact {
			return netip.Prefix{}, fmt.Errorf("is not a CIDR such as 10.0.0.0/16")
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("is an IPv4-mapped IPv6 CIDR; write it as IPv4")
	}
	if exact && p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("has bits set beyond its length; the network is %s", p.Masked())
	}
	return p.Masked(), nil
}
