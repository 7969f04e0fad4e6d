package nft

import "github.com/weir-net/weir/internal/nodestate"

// policyChain is where policy is judged: see the package's comment.
const policyChain = "judge"

// renderPolicy makes the chains, sets and elements of policy.
func (f family) renderPolicy(t *Table, _ *nodestate.State) {
	t.Chains[policyChain] = Chain{}
}
