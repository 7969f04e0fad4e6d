// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"testing"
	"time"

	attacks "github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// sourceAttacks are those of who sends with an address that is another's, each a scenario.
var sourceAttacks = []struct {
	file, attack, actor string
	programs            bool // nftables has no such packets: connection tracking puts fragments together first
}{
	{"source-link", "a host on the link sends with the address of another node's pod", attacks.Link, false},
	{"source-router", "a host beyond a router sends with the address of a pod whose node is on the link", attacks.Link, false},
	{"source-vxlan", "a host beyond a router sends without the tunnel with the address of a pod that is reached by it", attacks.Link, false},
	{"source-plain-for-tunnel", "a host on the link sends without the tunnel with the address of a pod that is reached by it", attacks.Link, false},
	{"source-tunnel", "a node sends through the tunnel with the address of another node, of its pod, or of the receiver's", attacks.Node, false},
	{"source-outer", "a host on the link sends VXLAN with a node's address as the outer source", attacks.Link, false},
	{"source-open-link", "a host on the link injects into an open connection between pods", attacks.Link, false},
	{"source-open-tunnel", "hosts and other nodes inject into an open connection between pods in the tunnel", attacks.Link, false},
	{"source-open-host", "a host on the link injects into a connection of a node's process with a pod elsewhere", attacks.Link, false},
	{"source-open-masqueraded", "a host on the link injects into a connection of a pod with a process of another node", attacks.Link, false},
	{"source-handed", "a host on the link forges what a node hands on, and the answers to it", attacks.Link, false},
	{"source-handed-tunnel", "a node forges what another node hands on through the tunnel, and the answers to it", attacks.Node, false},
	{"source-nobody", "packets bear an address of a pool that nobody has", attacks.Link, false},
	{"source-transit", "a host on the link lets a node route its packets into the tunnel, with an address of that node's block", attacks.Link, false},
	{"source-fragments", "a host on the link has its fragment joined to another node's pod's packet", attacks.Link, true},
	{"source-granted", "a pod sends with an address that is not its own: one that its namespace was not granted, or that somebody has", attacks.RawPod, false},
	{"source-change", "a host takes over the MAC address that a node gave up, and goes on in its pods' connections", attacks.Link, false},
}

// TestHostileSources plays them on the programs and on nftables, in both families.
func TestHostileSources(t *testing.T) {
	r, w := newRunner(t), newWires(t)
	for _, a := range sourceAttacks {
		for _, family := range []string{attacks.IPv4, attacks.IPv6} {
			mirrored := func(make scenario.NewCarrier) scenario.NewCarrier {
				if family == attacks.IPv6 {
					return scenario.Mirror(make)
				}
				return make
			}
			name := a.file + ".txtar"
			t.Run(a.file+"/programs/"+family, func(t *testing.T) {
				attacks.Record(t, a.attack, a.actor, attacks.EBPF, family)
				defer func() {
					if err := r.Reset(); err != nil {
						t.Error(err)
					}
				}()
				if err := timely(t, r, 400*time.Millisecond, func() error { return read(t, name).Play(mirrored(r.New)) }); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			})
			if a.programs {
				continue
			}
			t.Run(a.file+"/nftables/"+family, func(t *testing.T) {
				attacks.Record(t, a.attack, a.actor, attacks.NFTables, family)
				defer func() {
					if err := w.Reset(); err != nil {
						t.Error(err)
					}
				}()
				err := read(t, name).Play(mirrored(w.New))
				if ended := (*scenario.Ended)(nil); err != nil && !errors.As(err, &ended) {
					t.Fatalf("%s: %v", name, err)
				}
			})
		}
	}
}
