// SPDX-License-Identifier: Apache-2.0

package digest

import (
	"sync"

	"github.com/weir-net/weir/internal/model"
)

// Cache keeps the digests of policies, which many nodes have and which are long. What was not asked
// for while as many others were is forgotten. It is safe for concurrent use; nil keeps nothing.
type Cache struct {
	mu         sync.Mutex
	young, old map[*model.Policy]Sum
}

// mostCached is how many are in a generation.
const mostCached = 16 << 10

func (c *Cache) get(p *model.Policy, sum func() Sum) Sum {
	if c == nil {
		return sum()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.young[p]; ok {
		return s
	}
	s, ok := c.old[p]
	if !ok {
		s = sum()
	}
	if c.young == nil || len(c.young) >= mostCached {
		c.old, c.young = c.young, map[*model.Policy]Sum{}
	}
	c.young[p] = s
	return s
}
