// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// Filter is BGPFilter as newer servers of the API have it; the published types lack half of it.
type Filter struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		ExportV4 []FilterRule `json:"exportV4,omitempty"`
		ImportV4 []FilterRule `json:"importV4,omitempty"`
		ExportV6 []FilterRule `json:"exportV6,omitempty"`
		ImportV6 []FilterRule `json:"importV6,omitempty"`
	} `json:"spec,omitempty"`
}

// FilterRule is a rule of a BGPFilter, of either family.
type FilterRule struct {
	CIDR         string `json:"cidr,omitempty"`
	PrefixLength *struct {
		Min *int32 `json:"min,omitempty"`
		Max *int32 `json:"max,omitempty"`
	} `json:"prefixLength,omitempty"`
	Source        string `json:"source,omitempty"`
	Interface     string `json:"interface,omitempty"`
	MatchOperator string `json:"matchOperator,omitempty"`
	PeerType      string `json:"peerType,omitempty"`
	Communities   *struct {
		Values []string `json:"values"`
	} `json:"communities,omitempty"`
	ASPathPrefix []numorstring.ASNumber `json:"asPathPrefix,omitempty"`
	Priority     *int                   `json:"priority,omitempty"`
	Action       string                 `json:"action"`
	Operations   []FilterOperation      `json:"operations,omitempty"`
}

// FilterOperation changes an accepted route; one field is set.
type FilterOperation struct {
	AddCommunity *struct {
		Value string `json:"value"`
	} `json:"addCommunity,omitempty"`
	PrependASPath *struct {
		Prefix []numorstring.ASNumber `json:"prefix"`
	} `json:"prependASPath,omitempty"`
	SetPriority *struct {
		Value int `json:"value"`
	} `json:"setPriority,omitempty"`
}

// ConvertFilter converts a BGPFilter. A rule that cannot be read rejects all that comes to it:
// what it keeps out would get through otherwise.
func ConvertFilter(b *Filter) (*model.BGPFilter, []weirv1.Problem) {
	f := parse.NewFinding("BGPFilter", b)
	out := &model.BGPFilter{Name: b.Name}
	for _, of := range []struct {
		field string
		in    []FilterRule
		bits  int
		into  *[]model.BGPRule
	}{
		{"exportV4", b.Spec.ExportV4, 32, &out.Export4}, {"importV4", b.Spec.ImportV4, 32, &out.Import4},
		{"exportV6", b.Spec.ExportV6, 128, &out.Export6}, {"importV6", b.Spec.ImportV6, 128, &out.Import6},
	} {
		for i := range of.in {
			rule, matches := filterRule(f, fmt.Sprintf("spec.%s[%d]", of.field, i), &of.in[i], of.bits)
			if matches {
				*of.into = append(*of.into, rule)
			}
		}
	}
	return out, f.List
}

// filterRule converts a rule for prefixes of a family; matches is false for one that no route
// matches here.
func filterRule(f *parse.Finding, at string, r *FilterRule, bits int) (out model.BGPRule, matches bool) {
	bad := func(field, value, message, action string) (model.BGPRule, bool) {
		f.Add(at+field, value, message+"; the rule rejects every route", action)
		return model.BGPRule{}, true
	}
	switch r.Action {
	case "Accept", "Reject":
		out.Accept = r.Action == "Accept"
	default:
		return bad(".action", r.Action, "is neither Accept nor Reject", "correct it")
	}
	switch {
	case r.CIDR != "":
		p, err := parse.Prefix(r.CIDR, false)
		if err != nil {
			return bad(".cidr", r.CIDR, err.Error(), "correct it")
		}
		if p.Addr().BitLen() != bits {
			return bad(".cidr", r.CIDR, "is not of the family of the list", "move the rule to the list of the other family")
		}
		out.CIDR = p
		if err := prefixLengths(&out, r, bits); err != nil {
			return bad(err.field, err.value, err.message, "correct it")
		}
	case r.MatchOperator != "":
		return bad(".matchOperator", r.MatchOperator, "needs a cidr", "give cidr, or remove it")
	case r.PrefixLength != nil:
		return bad(".prefixLength", "", "needs a cidr", "give cidr and matchOperator, or remove it")
	}
	switch r.Source {
	case "", "RemotePeers":
		out.Remote = r.Source != ""
	default:
		return bad(".source", r.Source, "is not RemotePeers", "correct it, or remove it")
	}
	switch r.PeerType {
	case "", "eBGP", "iBGP":
		out.PeerType = r.PeerType
	default:
		return bad(".peerType", r.PeerType, "is neither eBGP nor iBGP", "correct it, or remove it")
	}
	if r.Communities != nil {
		if len(r.Communities.Values) != 1 {
			return bad(".communities.values", strings.Join(r.Communities.Values, " "), "is not one community", "give one")
		}
		if out.Community = r.Communities.Values[0]; !isCommunity(out.Community) {
			return bad(".communities.values[0]", out.Community, notCommunity, "correct it")
		}
	}
	out.ASPath = asns(r.ASPathPrefix)
	if r.Priority != nil {
		p, ok := priority(*r.Priority)
		if !ok {
			return bad(".priority", strconv.Itoa(*r.Priority), notPriority, "correct it")
		}
		out.Priority = p
	}
	if len(r.Operations) > 0 && !out.Accept {
		return bad(".operations", "", "change routes that are rejected", "remove them, or accept")
	}
	for i, o := range r.Operations {
		field := fmt.Sprintf(".operations[%d]", i)
		switch {
		case o.AddCommunity != nil && o.PrependASPath == nil && o.SetPriority == nil:
			if !isCommunity(o.AddCommunity.Value) {
				return bad(field+".addCommunity.value", o.AddCommunity.Value, notCommunity, "correct it")
			}
			out.Add = append(out.Add, o.AddCommunity.Value)
		case o.PrependASPath != nil && o.AddCommunity == nil && o.SetPriority == nil:
			// A later one comes before what an earlier one put in front.
			out.Prepend = append(asns(o.PrependASPath.Prefix), out.Prepend...)
		case o.SetPriority != nil && o.AddCommunity == nil && o.PrependASPath == nil:
			p, ok := priority(o.SetPriority.Value)
			if !ok {
				return bad(field+".setPriority.value", strconv.Itoa(o.SetPriority.Value), notPriority, "correct it")
			}
			out.SetPriority = p // of several the last one counts
		default:
			return bad(field, "", "is not one operation", "set one field of it")
		}
	}
	if len(out.Prepend) > mostPrepended {
		return bad(".operations", strconv.Itoa(len(out.Prepend)), fmt.Sprintf("put more than %d AS numbers in front", mostPrepended), "give fewer")
	}
	// Of the interface nothing is known here.
	if r.Interface != "" {
		f.Add(at+".interface", r.Interface, "is not in force: no route matches the rule", "write the rule by cidr")
		return out, false
	}
	return out, true
}

var notPriority = fmt.Sprintf("is not within 1 and %d", model.MaxBGPPriority-1)

// priority reads one.
func priority(v int) (uint32, bool) { return uint32(v), v >= 1 && v < model.MaxBGPPriority }

// mostPrepended bounds how many AS numbers a rule puts in front of a path.
const mostPrepended = 32

// ruleError is what is wrong with a field of a rule.
type ruleError struct{ field, value, message string }

// prefixLengths says how long the prefixes are that a rule with a CIDR is about.
func prefixLengths(out *model.BGPRule, r *FilterRule, bits int) *ruleError {
	own := out.CIDR.Bits()
	low, high := own, bits
	if l := r.PrefixLength; l != nil {
		for _, of := range []struct {
			field string
			v     *int32
		}{{"min", l.Min}, {"max", l.Max}} {
			if of.v != nil && (*of.v < 0 || int(*of.v) > bits) {
				return &ruleError{".prefixLength." + of.field, strconv.Itoa(int(*of.v)), fmt.Sprintf("is not within 0 and %d", bits)}
			}
		}
		if l.Min != nil {
			low = max(low, int(*l.Min))
		}
		if l.Max != nil {
			high = int(*l.Max)
		}
		if low > high {
			return &ruleError{".prefixLength", fmt.Sprintf("%d to %d", low, high), "leaves no length that a prefix within cidr can have"}
		}
	}
	switch r.MatchOperator {
	case "Equal", "NotEqual":
		if low > own {
			return &ruleError{".prefixLength", fmt.Sprintf("%d to %d", low, high), "leaves out the length of cidr, to which the prefix has to be equal"}
		}
		high = own
	case "In", "NotIn":
	default:
		return &ruleError{".matchOperator", r.MatchOperator, "is none of Equal, NotEqual, In, NotIn"}
	}
	out.Not = strings.HasPrefix(r.MatchOperator, "Not")
	out.MinBits, out.MaxBits = uint8(low), uint8(high)
	return nil
}

const notCommunity = "is neither aa:nn, of 16 bits each, nor aa:nn:mm, of 32 bits each"

// isCommunity reports whether a text is a standard or a large community.
func isCommunity(text string) bool {
	parts := strings.Split(text, ":")
	bits := map[int]int{2: 16, 3: 32}[len(parts)]
	if bits == 0 {
		return false
	}
	for _, p := range parts {
		// The number in one way only: it is compared as text.
		if v, err := strconv.ParseUint(p, 10, bits); err != nil || strconv.FormatUint(v, 10) != p {
			return false
		}
	}
	return true
}

func asns(in []numorstring.ASNumber) []uint32 {
	var out []uint32
	for _, n := range in {
		out = append(out, uint32(n))
	}
	return out
}
