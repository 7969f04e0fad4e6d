// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// A block of a pool that is gone counts for nobody, and one that was deleted waits for its blocks:
// these go as soon as they are empty, and not before.
func TestBlockOfNoPoolIsReleased(t *testing.T) {
	deleted := poolOf("p", "10.0.0.0/24", 28)
	deleted.Deleted = 1
	for what, pool := range map[string]model.Pool{"gone": poolOf("q", "10.1.0.0/24", 28), "deleted": deleted} {
		t.Run(what, func(t *testing.T) {
			api, ctx := newAPI(), context.Background()
			a := openTest(t, t.TempDir(), "n1", api, Options{LowWater: 1})
			a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 28)}})
			mustAlloc(t, a, reqFor("x"))
			a.Configure(Config{Pools: []model.Pool{pool}})
			if err := a.releaseIdle(ctx); err != nil || len(a.own) != 1 {
				t.Fatalf("%d blocks while a pod has an address, %v", len(a.own), err)
			}
			if _, err := a.Release("x", "eth0"); err != nil {
				t.Fatal(err)
			}
			if err := a.releaseIdle(ctx); err != nil || len(a.own) != 0 || len(api.blocks) != 0 {
				t.Errorf("%d blocks stay, %v", len(a.own), err)
			}
		})
	}
}

func TestDeletedPoolGivesNothing(t *testing.T) {
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{LowWater: 1})
	pool := poolOf("p", "10.0.0.0/24", 28)
	a.Configure(Config{Pools: []model.Pool{pool}})
	mustAlloc(t, a, reqFor("x"))
	pool.Deleted = 1
	a.Configure(Config{Pools: []model.Pool{pool}})
	if _, err := a.Allocate(context.Background(), reqFor("y")); err == nil || !strings.Contains(err.Error(), "p was deleted") {
		t.Errorf("unasked: %v", err)
	}
	asked := reqFor("z")
	asked.Fixed = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	if _, err := a.Allocate(context.Background(), asked); err == nil || !strings.Contains(err.Error(), "disabled or deleted") {
		t.Errorf("by address: %v", err)
	}
}
