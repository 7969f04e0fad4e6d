// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
)

const (
	// ownerFor is how long an answer counts; ownerWithin how long one is waited for; mostOwners how
	// many are known, and mostAsked how many are asked for at a time.
	ownerFor    = 30 * time.Second
	ownerWithin = 100 * time.Millisecond
	mostOwners  = 4096
	mostAsked   = 64
)

// owner is what a fan-out said of an address.
type owner struct {
	name  model.Name // zero = nobody has it
	until time.Time
	known bool
}

// Owner returns the pod that has an address: what the agent was sent does not name pods that no
// rule of the node's can be about. It waits a moment for an answer, so flows to many unknown
// addresses have some of them without a name.
func (c *Client) Owner(a netip.Addr) (model.Name, bool) {
	for end := time.Now().Add(ownerWithin); ; time.Sleep(2 * time.Millisecond) {
		c.mu.Lock()
		o, asked := c.owners[a]
		fresh := asked && time.Now().Before(o.until)
		if fresh && o.known {
			c.mu.Unlock()
			return o.name, o.name != model.Name{}
		}
		connected := c.err == ""
		if !fresh && connected && len(c.asking) < mostAsked {
			if len(c.owners) >= mostOwners {
				clear(c.owners)
			}
			c.owners[a] = owner{until: time.Now().Add(ownerWithin * 10)}
			c.asking = append(c.asking, a.AsSlice())
			signal(c.ask)
		} else if !fresh {
			connected = false
		}
		c.mu.Unlock()
		if !connected || time.Now().After(end) {
			return model.Name{}, false
		}
	}
}

// takeAsked returns what is to be asked now.
func (c *Client) takeAsked() *stream.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &stream.Request{OwnersOf: c.asking, Pods: c.questions.take()}
	c.asking = nil
	return out
}

// noteOwners keeps answers.
func (c *Client) noteOwners(answers []*stream.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range answers {
		a, ok := netip.AddrFromSlice(o.Addr)
		if _, asked := c.owners[a]; !ok || !asked {
			continue
		}
		c.owners[a] = owner{name: model.Name{Namespace: string(o.Namespace), Name: string(o.Name)}, until: time.Now().Add(ownerFor), known: true}
	}
}
