// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"slices"

	"github.com/weir-net/weir/internal/fanout/digest"
)

// HeldFrom makes a message of what an agent has; nil = nothing that can be described.
func HeldFrom(h digest.Held) *Held {
	if h == nil {
		return nil
	}
	out := &Held{Version: digest.Version, Scopes: make([]*HeldScope, 0, len(h))}
	for s, sums := range h {
		m := &HeldScope{Kind: uint32(s.Kind), Namespace: []byte(s.Namespace), Bits: uint32(digest.BitsOf(len(sums)))}
		for _, sum := range sums {
			m.Digests = append(m.Digests, sum[:]...)
		}
		out.Scopes = append(out.Scopes, m)
	}
	return out
}

// Digests returns what an agent says that it has: nil where it says nothing, or says it in another
// version. What is malformed is an error.
func (x *Held) Digests() (digest.Held, error) {
	if x == nil || x.Version != digest.Version {
		return nil, nil
	}
	if len(x.Scopes) > digest.MostScopes {
		return nil, fmt.Errorf("%d scopes, of which at most %d are read", len(x.Scopes), digest.MostScopes)
	}
	out := make(digest.Held, len(x.Scopes))
	total := 0
	for _, m := range x.Scopes {
		s, err := scopeOf(m.Kind, m.Namespace, m.Bits)
		if err != nil {
			return nil, err
		}
		const size = len(digest.Sum{})
		if len(m.Digests) != size<<m.Bits {
			return nil, fmt.Errorf("%d bytes of digests for %d buckets", len(m.Digests), 1<<m.Bits)
		}
		if total += 1 << m.Bits; total > digest.MostBuckets {
			return nil, fmt.Errorf("more than %d buckets", digest.MostBuckets)
		}
		if out[s] != nil {
			return nil, fmt.Errorf("kind %d of namespace %q is there twice", m.Kind, m.Namespace)
		}
		sums := make([]digest.Sum, 0, 1<<m.Bits)
		for at := 0; at < len(m.Digests); at += size {
			sums = append(sums, digest.Sum(m.Digests[at:]))
		}
		out[s] = sums
	}
	return out, nil
}

func scopeOf(kind uint32, namespace []byte, bits uint32) (digest.Scope, error) {
	if kind == 0 || kind > uint32(digest.LastKind) {
		return digest.Scope{}, fmt.Errorf("kind %d is not known", kind)
	}
	if bits > digest.MostBits {
		return digest.Scope{}, fmt.Errorf("1<<%d buckets, of which at most 1<<%d are read", bits, digest.MostBits)
	}
	return digest.Scope{Kind: digest.Kind(kind), Namespace: string(namespace)}, nil
}

// DeltaFrom makes a message of the buckets that differ.
func DeltaFrom(b digest.Buckets) *Delta {
	out := &Delta{}
	for s, in := range b {
		m := &Replaced{Kind: uint32(s.Kind), Namespace: []byte(s.Namespace), Bits: uint32(in.Bits)}
		if slices.Contains(in.Has, false) {
			for i, has := range in.Has {
				if has {
					m.Buckets = append(m.Buckets, uint32(i))
				}
			}
		}
		out.Replaced = append(out.Replaced, m)
	}
	return out
}

// Buckets returns the buckets that differ.
func (x *Delta) Buckets() (digest.Buckets, error) {
	out := digest.Buckets{}
	for _, m := range x.GetReplaced() {
		s, err := scopeOf(m.Kind, m.Namespace, m.Bits)
		if err != nil {
			return nil, err
		}
		in := &digest.In{Bits: uint8(m.Bits), Has: make([]bool, 1<<m.Bits)}
		for i := range in.Has {
			in.Has[i] = len(m.Buckets) == 0
		}
		for _, b := range m.Buckets {
			if int(b) >= len(in.Has) {
				return nil, fmt.Errorf("bucket %d of %d", b, len(in.Has))
			}
			in.Has[b] = true
		}
		out[s] = in
	}
	return out, nil
}
