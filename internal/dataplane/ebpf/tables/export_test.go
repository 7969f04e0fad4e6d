// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/delta"
)

// What the tests need that use loaded programs (package offline, which imports this one).

const (
	Grace      = grace
	SourceBase = sourceBase
)

var HeadKey = headKey

// KeyOf is the key of a verdict under a set and a class.
func KeyOf(set, class uint64, k abi.WeirPolicyKey) abi.WeirPolicyKey {
	return setClass{set, class}.key(k)
}

func Allowing(v abi.WeirPolicyValue) bool { return allowing(v) }

// KeepVerdicts calls keep before each delete of a verdict, which fails by its error.
func (t *Node) KeepVerdicts(keep func(abi.WeirPolicyKey) error) { t.policy.Keep = keep }

func (t *Node) VerdictTracker() *delta.Tracker[abi.WeirPolicyKey, abi.WeirPolicyValue] {
	return t.policy.Tracker
}

// Put makes the map hold a verdict under a set and a class.
func (t *Node) Put(set, class uint64, k abi.WeirPolicyKey, v abi.WeirPolicyValue) bool {
	return t.put(setClass{set, class}, k, v)
}
