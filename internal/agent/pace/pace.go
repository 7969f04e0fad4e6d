// SPDX-License-Identifier: Apache-2.0

// Package pace decides when an agent writes its NodeStatus, so that the agents of a large cluster
// together write little: each heartbeat the less often the more nodes there are, and what may have
// changed on all nodes at once, such as whether the API server answers, not at once.
package pace

import (
	"math/rand/v2"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// spreadEach is the time between two writes of the cluster where all nodes have something to say.
const spreadEach = 20 * time.Millisecond

// Pace is that of one agent. The zero value has written nothing.
type Pace struct {
	written bool
	beat    time.Time // of the next heartbeat
	soon    time.Time // when what has changed is written; zero = nothing has
}

// Due reports whether to write now, of so many nodes; differs says that there is something new.
func (p *Pace) Due(now time.Time, nodes int, differs bool) bool {
	switch {
	case !p.written:
		return true
	case !differs:
		p.soon = time.Time{}
	case p.soon.IsZero():
		p.soon = now
		if spread := time.Duration(nodes) * spreadEach; spread > time.Second {
			p.soon = now.Add(rand.N(spread))
		}
	}
	return !now.Before(p.beat) || !p.soon.IsZero() && !now.Before(p.soon)
}

// Wrote notes a write.
func (p *Pace) Wrote(now time.Time, nodes int) {
	every := weirv1.HeartbeatEvery(nodes)
	first := !p.written
	p.written, p.soon = true, time.Time{}
	if p.beat = now.Add(every - every/10 + rand.N(every/5)); first {
		p.beat = now.Add(rand.N(every)) // agents that began together do not go on so
	}
}
