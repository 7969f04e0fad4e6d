// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/nodestate"
)

// egressTables are the maps of one family that say by which gateways pods leave the cluster. A
// policy that changes has another number: its rules and its clients' lists are there before a
// client has the number, and go when none has it any more. So each flow that begins meanwhile goes
// by all of the earlier policy or by all of the later one.
type egressTables[A abi.Address] struct {
	lists    *maptable.Table[abi.GatewayKey[A], abi.GatewayList[A]]
	policies *maptable.Table[A, uint64]
	rules    *maptable.Table[abi.EgressKey[A], uint64]
}

func newEgress[A abi.Address](m map[string]*ebpf.Map, c *counts) *egressTables[A] {
	return &egressTables[A]{
		lists:    maptable.New[abi.GatewayKey[A], abi.GatewayList[A]]("weir_gateways", m["weir_gateways"], showGateways[A], &c.reevaluated),
		policies: maptable.New[A, uint64]("weir_egress_policies", m["weir_egress_policies"], abi.ShowAddr[A], &c.reevaluated),
		rules:    maptable.New[abi.EgressKey[A], uint64]("weir_egress_rules", m["weir_egress_rules"], showEgressRule[A], &c.reevaluated),
	}
}

func showGateways[A abi.Address](k abi.GatewayKey[A]) string {
	return fmt.Sprintf("%s group %s", abi.FromAddr(k.Client), nodestate.GatewayGroup(abi.Joined(k.Group)))
}

func showEgressRule[A abi.Address](k abi.EgressKey[A]) string {
	return fmt.Sprintf("policy %016x to %s", abi.Joined(k.Policy), cidrOf(k))
}

func cidrOf[A abi.Address](k abi.EgressKey[A]) netip.Prefix {
	return netip.PrefixFrom(abi.FromAddr(k.Addr), int(k.Len)-abi.EgressBits)
}

func (t *egressTables[A]) load() error {
	return errors.Join(t.lists.Load(), t.policies.Load(), t.rules.Load())
}

func (t *egressTables[A]) desire(s *nodestate.State) {
	t.lists.Desire(renderGateways[A](s))
	t.policies.Desire(renderEgressPolicies[A](s))
	t.rules.Desire(renderEgressRules[A](s))
}

// write makes no client's policy one that is not there as a whole: what a rule is about that is
// missing would leave by another rule. Such a client keeps what it has, and without anything sends
// nothing out of the cluster.
func (t *egressTables[A]) write() {
	t.lists.Write(nil)
	t.rules.Write(nil)
	missing := map[[2]uint32]bool{}
	for k := range t.rules.Tracker.Writes() {
		missing[k.Policy] = true
	}
	t.policies.Write(func(_ A, policy uint64) error {
		if missing[abi.Halves(policy)] {
			return errors.New("waits for the rules of its policy")
		}
		return nil
	})
}

// remove keeps what clients have whose policy could not be changed.
func (t *egressTables[A]) remove() {
	t.policies.Remove(nil)
	waiting := maps.Collect(t.policies.Tracker.Writes())
	t.lists.Remove(func(k abi.GatewayKey[A]) error {
		if _, is := waiting[k.Client]; is {
			return maptable.ErrLater
		}
		return nil
	})
	used := map[[2]uint32]bool{}
	for _, policy := range t.policies.Tracker.All() {
		used[abi.Halves(policy)] = true
	}
	t.rules.Remove(func(k abi.EgressKey[A]) error {
		if used[k.Policy] {
			return maptable.ErrLater
		}
		return nil
	})
}

func (t *egressTables[A]) pending() bool {
	return t.lists.Pending() || t.policies.Pending() || t.rules.Pending()
}

func (t *egressTables[A]) errors() []error {
	return slices.Concat(t.lists.Errors(), t.policies.Errors(), t.rules.Errors())
}

func renderGateways[A abi.Address](s *nodestate.State) iter.Seq2[abi.GatewayKey[A], abi.GatewayList[A]] {
	return func(yield func(abi.GatewayKey[A], abi.GatewayList[A]) bool) {
		for k, list := range s.Gateways {
			if !abi.Carries[A](k.Client) {
				continue
			}
			v := abi.GatewayList[A]{Count: uint32(min(len(list), abi.Gateways))}
			for i := range v.Count {
				v.Gateways[i] = abi.ToAddr[A](list[i])
			}
			if !yield(abi.GatewayKey[A]{Group: abi.Halves(uint64(k.Group)), Client: abi.ToAddr[A](k.Client)}, v) {
				return
			}
		}
	}
}

func renderEgressPolicies[A abi.Address](s *nodestate.State) iter.Seq2[A, uint64] {
	return func(yield func(A, uint64) bool) {
		for client, id := range s.Egress.Policies {
			if abi.Carries[A](client) && !yield(abi.ToAddr[A](client), uint64(id)) {
				return
			}
		}
	}
}

func renderEgressRules[A abi.Address](s *nodestate.State) iter.Seq2[abi.EgressKey[A], uint64] {
	return func(yield func(abi.EgressKey[A], uint64) bool) {
		for to, group := range s.Egress.Rules {
			key := abi.EgressKey[A]{Len: uint32(abi.EgressBits + to.CIDR.Bits()), Policy: abi.Halves(uint64(to.Policy)), Addr: abi.ToAddr[A](to.CIDR.Addr())}
			if abi.Carries[A](to.CIDR.Addr()) && !yield(key, uint64(group)) {
				return
			}
		}
	}
}

// read adds what the maps hold to a state.
func (t *egressTables[A]) read(s *nodestate.State) {
	for k, v := range t.lists.Tracker.All() {
		key := nodestate.GatewayKey{Client: abi.FromAddr(k.Client), Group: nodestate.GatewayGroup(abi.Joined(k.Group))}
		for i := range min(v.Count, abi.Gateways) {
			s.Gateways[key] = append(s.Gateways[key], abi.FromAddr(v.Gateways[i]))
		}
	}
	for client, id := range t.policies.Tracker.All() {
		s.Egress.Policies[abi.FromAddr(client)] = nodestate.EgressPolicyID(id)
	}
	for k, group := range t.rules.Tracker.All() {
		s.Egress.Rules[nodestate.EgressDestination{Policy: nodestate.EgressPolicyID(abi.Joined(k.Policy)), CIDR: cidrOf(k)}] = nodestate.GatewayGroup(group)
	}
}
