// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// MaxSeparate is how many peers times ranges of ports a rule may have whose peers stay
// separate: each peer is an atom, and each class of one gets all entries of the ports. The peers of
// a larger rule are one atom, and their ports are written once. It is not so for all rules, because
// a change of such a list makes a class of another number.
const MaxSeparate = 256

// union returns the atom that is true of what one of many peers is, nil where no carried address
// can be. Nodes and domain names are none of them: their addresses change.
func (x *Atoms) union(peers []model.Peer) *Atom {
	a := &Atom{}
	text := sha256.New()
	var plain []netip.Prefix
	add := func(part *Atom) {
		if part != nil {
			part.whole = a
			a.parts = append(a.parts, part)
			text.Write([]byte(part.Text + "\n"))
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
	a.Text = "one of " + hex.EncodeToString(text.Sum(sum[:0]))
	return x.use(a)
}

// peers returns the clause that is true of what one of a rule's peers is.
func (x *Atoms) peers(r *model.Rule) Clause {
	any := Clause{}
	add := func(a *Atom) {
		if a != nil {
			any = append(any, Literal{Atom: a})
		}
	}
	apart := r.Peers
	if len(r.Peers) > 1 && len(r.Peers)*max(1, len(r.Ports)) > MaxSeparate {
		var list []model.Peer
		apart = nil
		for _, p := range r.Peers {
			if p.Nodes != nil || len(p.Domains) > 0 {
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
