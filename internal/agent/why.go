// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/why"
)

// whyAgent is why.Agent.
type whyAgent struct{ *Agent }

// applyWithin is how long an answer waits for the newest state to be in the kernel.
const applyWithin = 2 * time.Second

// AppliedState implements why.Agent.
func (a whyAgent) AppliedState(ctx context.Context) (s *nodestate.State, behind string, err error) {
	var gen uint64
	if err := a.cluster.do(ctx, func() {
		a.cluster.compute()
		gen, s = a.cluster.gen, a.cluster.snapshot().state
	}); err != nil {
		return nil, "", err
	}
	if s == nil {
		return nil, "", errors.New("the agent has not read the cluster yet")
	}
	wait, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	for a.loop.Applied() < gen && wait.Err() == nil {
		select {
		case <-wait.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if done := a.loop.Applied(); done < gen {
		behind = fmt.Sprintf("the kernel has generation %d of the node's state, the newest is %d", done, gen)
	} else if err := a.loop.Err(); err != nil {
		behind = err.Error()
	}
	return s, behind, nil
}

// Explain implements why.Agent.
func (a whyAgent) Explain(ctx context.Context, s *nodestate.State, ask why.Explainer) (x policy.Explanation, found bool, err error) {
	c := a.cluster
	var same bool
	if err := c.do(ctx, func() {
		c.compute()
		if same = c.snapshot().state == s; same {
			x, found = ask(c.model)
		}
	}); err != nil {
		return x, false, err
	}
	if !same {
		return x, false, why.ErrMoved
	}
	return x, found, nil
}

// DataPlane implements why.Agent.
func (a whyAgent) DataPlane() why.DataPlane { return a.driver }

// LinkAddress implements why.Agent.
func (a whyAgent) LinkAddress() string { return linkAddress(a.cluster.snapshot().machine.MAC) }
