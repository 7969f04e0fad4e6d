// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/observer"
)

// counting is a store that counts losses, and who sees it all or not.
type counting struct {
	mu    sync.Mutex
	lost  map[string]uint64
	all   bool
	asked int
}

func (c *counting) Read(context.Context, flows.Question, func(*flows.Flow) error) error { return nil }

func (c *counting) All() bool { return c.all }

func (c *counting) Status(context.Context) (*flows.StoreStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return &flows.StoreStatus{Counted: c.lost}, nil
}

func (c *counting) set(lost map[string]uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = lost
}

// follower is who follows.
type follower struct {
	grpc.ServerStreamingServer[observer.GetFlowsResponse]
	ctx  context.Context
	mu   sync.Mutex
	told []string
}

func (f *follower) Context() context.Context { return f.ctx }

func (f *follower) Send(r *observer.GetFlowsResponse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, fmt.Sprint(r.GetLostEvents().GetSource(), " ", r.GetLostEvents().GetNumEventsLost()))
	return nil
}

// Who follows over the store is told what was lost since, once; not who sees a part of the records,
// and not of what the store had and has no more.
func TestStoredLosses(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := &counting{all: all, lost: map[string]uint64{"old": 5, "ring": 1}}
			s := &Stored{Open: func(context.Context) (Reader, func(), error) { return c, func() {}, nil }, Nodes: func(context.Context) ([]Node, error) { return nil, nil }}
			ctx, cancel := context.WithCancel(t.Context())
			to := &follower{ctx: ctx}
			ended := make(chan error, 1)
			go func() { ended <- s.getFlows(&observer.GetFlowsRequest{Follow: true}, to) }()
			time.Sleep(lookForRecords + time.Second)
			c.set(map[string]uint64{"old": 12, "ring": 1, "full": 900, "torn": 8, "time": 2, "large": 1})
			time.Sleep(2 * lookForRecords)
			c.set(map[string]uint64{"old": 3}) // the store began again
			time.Sleep(2 * lookForRecords)
			cancel()
			<-ended
			want := []string{"HUBBLE_RING_BUFFER 7", "OBSERVER_EVENTS_QUEUE 3", "HUBBLE_RING_BUFFER 3"}
			if !all {
				want = nil
			}
			slices.Sort(want)
			slices.Sort(to.told)
			if !slices.Equal(to.told, want) || !all && c.asked > 0 {
				t.Errorf("told %q, want %q; asked %d times", to.told, want, c.asked)
			}
		})
	}
}
