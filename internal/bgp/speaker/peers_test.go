// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

// TestSame: a session does not end for its name, nor because this node need not begin it any more;
// it does where otherwise nobody would begin the next one.
func TestSame(t *testing.T) {
	of := func(change func(*nodestate.BGPPeer)) session {
		p := nodestate.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), Name: "router", ASN: 64999, Restart: 120}
		change(&p)
		return session{peer: p}
	}
	begins, waits := of(func(*nodestate.BGPPeer) {}), of(func(p *nodestate.BGPPeer) { p.Passive = true })
	for what, c := range map[string]struct {
		was, is session
		want    bool
	}{
		"nothing changes":        {begins, begins, true},
		"another name":           {begins, of(func(p *nodestate.BGPPeer) { p.Name = "rack" }), true},
		"another AS":             {begins, of(func(p *nodestate.BGPPeer) { p.ASN = 64998 }), false},
		"need not begin":         {begins, waits, true},
		"has to begin":           {waits, begins, false},
		"waits as before":        {waits, waits, true},
		"another restart, too":   {begins, of(func(p *nodestate.BGPPeer) { p.Passive, p.Restart = true, 60 }), false},
		"a password that is new": {begins, session{peer: begins.peer, password: "x"}, false},
	} {
		if got := same(c.was, c.is); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
