// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// NodeClaims says since when a Node has its addresses: since it was first seen (0), or since a
// later time, in Unix seconds.
type NodeClaims struct {
	UID   string               `json:"uid"`
	Addrs map[netip.Addr]int64 `json:"addresses"`
}

// ClaimsOf returns what is to be remembered of a node.
func ClaimsOf(n *model.Node) NodeClaims {
	c := NodeClaims{UID: n.UID, Addrs: make(map[netip.Addr]int64, len(n.Addrs))}
	for _, a := range n.Addrs {
		c.Addrs[a] = n.Since[a]
	}
	return c
}

// Claims remember since when nodes have addresses that they did not have when they were first seen:
// what a node claims later takes nothing from those who had it before.
type Claims struct {
	known map[string]NodeClaims
}

// NewClaims returns claims that begin with what was known at the end of another run.
func NewClaims(known map[string]NodeClaims) *Claims {
	c := &Claims{known: maps.Clone(known)}
	if c.known == nil {
		c.known = map[string]NodeClaims{}
	}
	return c
}

// Note returns since when a node has its addresses, those left out that it had at first. What
// somebody else knows of that, n.Since, counts for addresses that are not known here.
func (c *Claims) Note(n *model.Node) map[netip.Addr]int64 {
	since := map[netip.Addr]int64{}
	before := c.known[n.Name]
	for _, a := range n.Addrs {
		at := n.Since[a]
		if before.Addrs != nil && before.UID == n.UID {
			if known, had := before.Addrs[a]; had {
				at = known
			} else if at == 0 {
				at = time.Now().Unix()
			}
		}
		if at != 0 {
			since[a] = at
		}
	}
	if len(since) == 0 {
		since = nil
	}
	c.known[n.Name] = ClaimsOf(&model.Node{UID: n.UID, Addrs: n.Addrs, Since: since})
	return since
}

// Gone forgets a node.
func (c *Claims) Gone(name string) { delete(c.known, name) }
