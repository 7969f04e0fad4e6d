// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// Following a state: of a state that was made from the one before, only what differs is looked at,
// so that one endpoint's change costs the same among ten Services and among a hundred thousand.

// desirePolicy desires the verdicts that differ from those that were followed before.
func (t *Node) desirePolicy(s *nodestate.State) {
	if t.policyFresh {
		t.policy.Desire(renderPolicy(s))
		t.policies++
	} else {
		for k, c := range nodestate.Changes(t.seenPolicy, s.Policy, func(a, b nodestate.PolicyValue) bool { return a == b }) {
			t.policies++
			if c.Is {
				t.policy.Tracker.Set(toPolicyKey(k), toPolicyValue(c.After))
			} else {
				t.policy.Tracker.Unset(toPolicyKey(k))
			}
		}
	}
	t.policyFresh, t.seenPolicy = false, s.Policy
}

// desirePeers desires the classes of addresses that differ from those that were followed before.
func (t *familyTables[A]) desirePeers(s *nodestate.State) {
	if t.peersFresh {
		t.peers.Desire(renderPeers[A](s))
	} else {
		for a, c := range nodestate.Changes(t.seenPeers, s.Peers, func(a, b nodestate.Class) bool { return a == b }) {
			switch {
			case !abi.Carries[A](a):
			case c.Is:
				t.peers.Tracker.Set(abi.ToAddr[A](a), uint64(c.After))
			default:
				t.peers.Tracker.Unset(abi.ToAddr[A](a))
			}
		}
	}
	t.peersFresh, t.seenPeers = false, s.Peers
}

// desireCIDRs desires the classes of prefixes that differ from those that were followed before.
func (t *familyTables[A]) desireCIDRs(s *nodestate.State) {
	switch {
	case t.seenCIDRs == nil:
		t.peerCIDRs.Desire(renderPeerCIDRs[A](s))
	case !nodestate.SameMap(t.seenCIDRs, s.PeerCIDRs):
		for p, c := range s.PeerCIDRs {
			if was, ok := t.seenCIDRs[p]; abi.Carries[A](p.Addr()) && (!ok || was != c) {
				t.peerCIDRs.Tracker.Set(abi.ToPrefix[A](p), uint64(c))
			}
		}
		for p := range t.seenCIDRs {
			if _, still := s.PeerCIDRs[p]; abi.Carries[A](p.Addr()) && !still {
				t.peerCIDRs.Tracker.Unset(abi.ToPrefix[A](p))
			}
		}
	}
	t.seenCIDRs = s.PeerCIDRs
}
