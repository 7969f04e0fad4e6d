// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"slices"
	"testing"
	"time"

	attack "github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// scenarioAttack is an attack that a scenario carries out: on these data planes and in these
// families, nil = both. A scenario of IPv6 alone has IPv6's addresses; others are mirrored.
type scenarioAttack struct {
	name, file, actor string
	planes, families  []string
	make              func(*testing.T) *scenario.Scenario // in the place of the file
}

func (a *scenarioAttack) scenario(t *testing.T) *scenario.Scenario {
	if a.make != nil {
		return a.make(t)
	}
	return read(t, a.file)
}

var tunnelAttacks = []scenarioAttack{
	{name: "VXLAN from a pod to a node's address that its Node object does not list", file: "hostile-vxlan-unlisted.txtar", actor: attack.Pod},
	{name: "a Service that leads to VXLAN's port of a node's unlisted address", file: "hostile-vxlan-service.txtar", actor: attack.Tenant},
	{name: "a pod's answer to a forged question as a VXLAN packet with the node's address", file: "hostile-vxlan-answer.txtar", actor: attack.Pod},
	// To nftables fragments are whole packets: connection tracking puts them together first.
	{name: "VXLAN in a fragmented datagram of a pod", file: "hostile-vxlan-fragments.txtar", actor: attack.RawPod, planes: []string{attack.EBPF}},
	{name: "IP in IP from a pod", file: "hostile-ipip.txtar", actor: attack.RawPod},
	{name: "a pool's address that no node has as a source, with bpfEnforceRPF Strict", file: "reverse-path.txtar", actor: attack.Link},
	{name: "IP in IP from no node, with another MAC address, or with a source of another node inside", file: "hostile-ipip-sources.txtar", actor: attack.Link, planes: []string{attack.EBPF}, families: []string{attack.IPv4}},
	{name: "IP in IP to a node that no pool lets take it", file: "hostile-ipip-off.txtar", actor: attack.Link, planes: []string{attack.EBPF}, families: []string{attack.IPv4}},
	{name: "IP in IP behind extension headers", file: "dual-hostile-ipip.txtar", actor: attack.RawPod, families: []string{attack.IPv6}},
}

// TestHostileTunnels plays the attacks by tunnels on both data planes, in both families.
func TestHostileTunnels(t *testing.T) { playAttacks(t, tunnelAttacks) }

// playAttacks plays scenarios that are attacks on the loaded programs and on kernels that nftables'
// driver wrote, in both families.
func playAttacks(t *testing.T, attacks []scenarioAttack) {
	programs, wires := newRunner(t), newWires(t)
	planes := []struct {
		name  string
		make  scenario.NewCarrier
		reset func() error
		play  func(t *testing.T, play func() error) error
	}{
		{attack.EBPF, programs.New, programs.Reset, func(t *testing.T, play func() error) error {
			return timely(t, programs, 400*time.Millisecond, play)
		}},
		{attack.NFTables, wires.New, wires.Reset, func(_ *testing.T, play func() error) error { return play() }},
	}
	for _, a := range attacks {
		for _, p := range planes {
			for _, family := range []string{attack.IPv4, attack.IPv6} {
				if a.planes != nil && !slices.Contains(a.planes, p.name) || a.families != nil && !slices.Contains(a.families, family) {
					continue
				}
				t.Run(a.file+"/"+p.name+"/"+family, func(t *testing.T) {
					attack.Record(t, a.name, a.actor, p.name, family)
					defer func() {
						if err := p.reset(); err != nil {
							t.Error(err)
						}
					}()
					carrier := p.make
					if family == attack.IPv6 && a.families == nil {
						carrier = scenario.Mirror(carrier)
					}
					if err := p.play(t, func() error { return a.scenario(t).Play(carrier) }); err != nil {
						t.Fatalf("%s: %v", a.file, err)
					}
				})
			}
		}
	}
}
