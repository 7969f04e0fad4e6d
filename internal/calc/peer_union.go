// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// maxSeparatePeers is how many peers times ranges of ports a rule may have whose peers are told
// apart: each peer is an atom, and each class of one gets all entries of the ports. The peers of a
// larger rule are one atom, and their ports are written once. It is not so for all rules, because a
// change of such a list makes a class of another number.
const maxSeparatePeers = 256

// union returns the atom that is true of what one of many peers is, nil where no carried address
// can be. Nodes are none of them: their addresses change.
func (x *atoms) union(peers []model.Peer) *atom {
	a := &atom{}
	text := sha256.New()
	var plain []netip.Prefix
	add := func(part *atom) {
		if part != nil {
			part.whole = a
			a.parts = append(a.parts, part)
			text.Write([]byte(part.text + "\n"))
		}
	}
	for i := range peers {
		switch p := &peers[i]; {
		case p.Pods == nil && len(p.Except) == 0:
			plain = append(plain, p.CIDR)
		default:
			add(x.newPeer(p))
		}
	}
	add(x.newNets(plain, nil))
	if len(a.parts) == 0 {
		return nil
	}
	var sum [sha256.Size]byte
	a.text = "one of " + hex.EncodeToString(text.Sum(sum[:0]))
	return x.use(a)
}

// peers returns the clause that is true of what one of a rule's peers is.
func (x *atoms) peers(r *model.Rule) clause {
	any := clause{}
	add := func(a *atom) {
		if a != nil {
			any = append(any, literal{atom: a})
		}
	}
	apart := r.Peers
	if len(r.Peers) > 1 && len(r.Peers)*max(1, len(r.Ports)) > maxSeparatePeers {
		var list []model.Peer
		apart = nil
		for _, p := range r.Peers {
			if p.Nodes != nil {
				apart = append(apart, p)
			} else {
				list = append(list, p)
			}
		}
		add(x.union(list))
	}
	for i := range apart {
		if a := x.newPeer(&apart[i]); a != nil {
			add(x.use(a))
		}
	}
	return any
}

// each calls f for the parts of an atom, or for itself where it has none.
func (a *atom) each() iter.Seq[*atom] {
	return func(yield func(*atom) bool) {
		if a.parts == nil {
			yield(a)
			return
		}
		for _, p := range a.parts {
			if !yield(p) {
				return
			}
		}
	}
}

// all returns the atom that a part is of, or itself.
func (a *atom) all() *atom {
	if a.whole != nil {
		return a.whole
	}
	return a
}
