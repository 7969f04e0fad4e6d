// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// toNameKey returns the key of a name, or of what names end with: text with a dot before it. ok is
// false of one that no name can match. Names are stored from their end on, so that what they end
// with is a prefix.
func toNameKey(text string) (k abi.WeirNameKey, ok bool) {
	n := len(text)
	if n == 0 || n >= abi.NameBytes-1 {
		return k, false
	}
	for i := range n {
		k.Name[i] = text[n-1-i]
	}
	if text[0] != '.' {
		n++ // the 0 at its end
	}
	k.Len = uint32(8 * n)
	return k, true
}

// groupOf numbers the patterns that end with a tail and have something before their wildcard. The
// first byte of the number is 0, so that its keys are of no name.
func groupOf(tail string) uint64 {
	if tail == "" {
		return 0
	}
	sum := sha256.Sum256([]byte("patterns that end with " + tail))
	sum[0] = 0
	return binary.NativeEndian.Uint64(sum[:])
}

// toHeadKey returns the key of what patterns of a group begin with.
func toHeadKey(group uint64, head string) (k abi.WeirNameKey, ok bool) {
	if len(head) > len(k.Name)-abi.NameGroupBytes {
		return k, false
	}
	binary.NativeEndian.PutUint64(k.Name[:], group)
	copy(k.Name[abi.NameGroupBytes:], head)
	k.Len = uint32(8 * (abi.NameGroupBytes + len(head)))
	return k, true
}

// fromNameKey returns what a key was made of: of a head, its group, too.
func fromNameKey(k abi.WeirNameKey) (text string, group uint64, isHead bool) {
	n := min(int(k.Len/8), abi.NameBytes)
	if isHead = n >= abi.NameGroupBytes && k.Name[0] == 0; isHead {
		return string(k.Name[abi.NameGroupBytes:n]), binary.NativeEndian.Uint64(k.Name[:]), true
	}
	name := slices.Clone(k.Name[:n])
	slices.Reverse(name)
	return strings.TrimPrefix(string(name), "\x00"), 0, false
}

// describePattern says which patterns a key is of.
func describePattern(k abi.WeirNameKey) string {
	text, _, isHead := fromNameKey(k)
	switch {
	case isHead:
		return text + "*…"
	case strings.HasPrefix(text, "."):
		return "*" + text
	}
	return text
}

// nameEnd is what names end with that patterns are about, after a wildcard.
type nameEnd struct {
	wild  nodestate.NameID            // of the pattern that is nothing but this end; 0 = none
	heads map[string]nodestate.NameID // of those with something before the wildcard, by that
}

// ends returns the ends of all patterns with wildcards.
func ends(n *nodestate.Names) map[string]*nameEnd {
	out := map[string]*nameEnd{}
	for pattern, id := range n.Patterns {
		head, tail, wild := model.SplitDomain(pattern)
		if !wild {
			continue
		}
		e := out[tail]
		if e == nil {
			e = &nameEnd{heads: map[string]nodestate.NameID{}}
			out[tail] = e
		}
		if head == "" {
			e.wild = id
		} else {
			e.heads[head] = id
		}
	}
	return out
}

// addEnds adds the patterns of an end and of shorter ones, the longest first: of more than there is
// room for the ones of most names are left out.
func addEnds(v *abi.WeirNameMatch, of map[string]*nameEnd, end string) {
	add := func(number uint64, group bool) {
		if v.Count == abi.NameMatches {
			return
		}
		if v.Patterns[v.Count] = number; group {
			v.More |= 1 << v.Count
		}
		v.Count++
	}
	for end != "" {
		if e := of[end]; e != nil {
			if e.wild != 0 {
				add(uint64(e.wild), false)
			}
			if len(e.heads) > 0 {
				add(groupOf(end), true)
			}
		}
		if next := strings.Index(end[1:], "."); next >= 0 {
			end = end[1+next:]
		} else {
			end = ""
		}
	}
}

// headsOf returns the patterns of an end that begin as a name does that begins with head.
func headsOf(e *nameEnd, tail, head string) (v abi.WeirNameMatch) {
	for head != "" {
		if id, has := e.heads[head]; has && v.Count < abi.NameHeads {
			v.Patterns[v.Count] = uint64(id)
			v.More |= uint32(len(head)+len(tail)+1) << (8 * v.Count)
			v.Count++
		}
		head = head[:strings.LastIndex(head[:len(head)-1], ".")+1]
	}
	return v
}

// renderPatterns gives each pattern, or what it ends with, the patterns that every name matches
// which matches it.
func renderPatterns(n *nodestate.Names) iter.Seq2[abi.WeirNameKey, abi.WeirNameMatch] {
	return func(yield func(abi.WeirNameKey, abi.WeirNameMatch) bool) {
		of := ends(n)
		for pattern, id := range n.Patterns {
			if k, ok := toNameKey(pattern); ok && !strings.Contains(pattern, "*") {
				v := abi.WeirNameMatch{Count: 1}
				v.Patterns[0] = uint64(id)
				if _, parent, more := strings.Cut(pattern, "."); more {
					addEnds(&v, of, "."+parent)
				}
				if !yield(k, v) {
					return
				}
			}
		}
		for tail, e := range of {
			if k, ok := toNameKey(tail); ok {
				var v abi.WeirNameMatch
				addEnds(&v, of, tail)
				if !yield(k, v) {
					return
				}
			}
			for head := range e.heads {
				if k, ok := toHeadKey(groupOf(tail), head); ok && !yield(k, headsOf(e, tail, head)) {
					return
				}
			}
		}
	}
}

// readPatterns is the other way round.
func readPatterns(all iter.Seq2[abi.WeirNameKey, abi.WeirNameMatch], into map[string]nodestate.NameID) {
	tails := map[uint64]string{0: ""}
	for k := range all {
		if text, _, isHead := fromNameKey(k); !isHead && strings.HasPrefix(text, ".") {
			tails[groupOf(text)] = text
		}
	}
	for k, v := range all {
		text, group, isHead := fromNameKey(k)
		switch {
		case v.Count == 0:
		case isHead:
			if tail, known := tails[group]; known {
				into[text+"*"+tail] = nodestate.NameID(v.Patterns[0])
			}
		case !strings.HasPrefix(text, "."):
			into[text] = nodestate.NameID(v.Patterns[0])
		case v.More&1 == 0:
			into["*"+text] = nodestate.NameID(v.Patterns[0])
		}
	}
}
