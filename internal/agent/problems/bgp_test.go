// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestBGP(t *testing.T) {
	now := time.Unix(1e9, 0)
	long := now.Add(-time.Hour)
	used := Node{Name: "a", State: &nodestate.State{BGP: &nodestate.BGP{}}}
	peer := func(state string, since time.Time) feed.Peer {
		return feed.Peer{Addr: netip.MustParseAddr("192.0.2.9"), Name: "tor", ASN: 64999, State: state, Since: since, LastError: "hold timer expired"}
	}
	for name, c := range map[string]struct {
		node  Node
		st    *feed.Status
		began time.Time
		want  string // parts of the problems, in order
	}{
		"not in use":               {Node{Name: "a", State: &nodestate.State{}}, nil, long, ""},
		"not known":                {Node{Name: "a"}, nil, long, ""},
		"the agent has begun":      {used, nil, now, ""},
		"no process":               {used, nil, long, "no BGP process runs"},
		"well":                     {used, &feed.Status{Since: long, Peers: []feed.Peer{peer("established", long)}}, long, ""},
		"down":                     {used, &feed.Status{Since: long, Peers: []feed.Peer{peer("active", long)}}, long, "hold timer expired"},
		"down for a moment":        {used, &feed.Status{Since: long, Peers: []feed.Peer{peer("active", now)}}, long, ""},
		"the process has begun":    {used, &feed.Status{Since: now, Peers: []feed.Peer{peer("active", long)}}, long, ""},
		"refused":                  {used, &feed.Status{Since: long, Err: "port 179 is taken"}, long, "port 179 is taken"},
		"a filter is missing":      {Node{Name: "a", State: &nodestate.State{BGP: &nodestate.BGP{MissingFilters: []string{"f of BGPPeer tor"}}}}, &feed.Status{Since: long}, long, "there is no BGPFilter of this name"},
		"a community is not known": {Node{Name: "a", State: &nodestate.State{BGP: &nodestate.BGP{UnknownCommunities: []string{"blue"}}}}, &feed.Status{Since: long}, long, "no value is given for this name"},
		"routes":                   {used, &feed.Status{Since: long, Routes: fib.Status{Err: "no space", Unresolved: 2}}, long, "no space|next hops are not reached"},
	} {
		var parts []string
		if c.want != "" {
			parts = strings.Split(c.want, "|")
		}
		got := BGP(c.node, c.st, c.began, now)
		if len(got) != len(parts) {
			t.Errorf("%s: %v, want %q", name, got, c.want)
			continue
		}
		for i, p := range got {
			if !strings.Contains(p.String(), parts[i]) || p.Action == "" {
				t.Errorf("%s: %v, want %q", name, p, parts[i])
			}
		}
	}
}
