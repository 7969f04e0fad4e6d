// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"testing"
	"time"

	attacks "github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// frontendsAttack is what a tenant is after with them.
const frontendsAttack = "packets for an API server, a kubelet and a failsafe port go where a tenant's Service says"

// TestHostileFrontends plays a tenant's Services against packets for what nodes need.
func TestHostileFrontends(t *testing.T) {
	playHostile(t, "hostile-frontends.txtar", frontendsAttack, attacks.Tenant)
}

// playHostile plays a scenario of an attack on both data planes, with each family, and records what
// was held.
func playHostile(t *testing.T, file, name, actor string) {
	t.Run("ebpf", func(t *testing.T) {
		r := newRunner(t)
		for family, mirror := range mirrors {
			t.Run(family, func(t *testing.T) {
				attacks.Record(t, name, actor, attacks.EBPF, family)
				defer reset(t, r)
				if err := read(t, file).Play(mirror(scenario.NewSim(1))); err != nil {
					t.Fatalf("oracle: %v", err)
				}
				if err := timely(t, r, 400*time.Millisecond, func() error { return read(t, file).Play(mirror(r.New)) }); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
	t.Run("nftables", func(t *testing.T) {
		r := newWires(t)
		for family, mirror := range mirrors {
			t.Run(family, func(t *testing.T) {
				attacks.Record(t, name, actor, attacks.NFTables, family)
				defer reset(t, r)
				if err := read(t, file).Play(mirror(r.New)); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// mirrors are how scenarios are played with each family.
var mirrors = map[string]func(scenario.NewCarrier) scenario.NewCarrier{
	attacks.IPv4: func(c scenario.NewCarrier) scenario.NewCarrier { return c },
	attacks.IPv6: scenario.Mirror,
}

func reset(t *testing.T, r interface{ Reset() error }) {
	t.Helper()
	if err := r.Reset(); err != nil {
		t.Error(err)
	}
}

// floatingAttack is what a tenant is after with floating addresses.
const floatingAttack = "a pod takes packets by a floating address that its namespace was not granted, or that somebody has"

// TestHostileFloating plays a tenant's pods that ask for others' addresses.
func TestHostileFloating(t *testing.T) {
	playHostile(t, "hostile-floating.txtar", floatingAttack, attacks.Tenant)
}
