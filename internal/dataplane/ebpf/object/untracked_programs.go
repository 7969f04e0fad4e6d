// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"

	"github.com/cilium/ebpf"
)

// What host endpoints say of each packet by itself (doNotTrack) is said by two programs that are in
// the kernel only while a policy asks for it: weir_arrive, in XDP on each uplink, and
// weir_to_uplink_each, which takes the place of weir_to_uplink. Where XDP cannot be had,
// weir_from_uplink evaluates: later, and at more cost.

// The names of the two programs.
const (
	ArriveProgram = "weir_arrive"
	EachProgram   = "weir_to_uplink_each"
)

// untrackedNames are both.
var untrackedNames = []string{ArriveProgram, EachProgram}

// UntrackedOfIPv6 is the map by which IPv4's weir_arrive calls that of IPv6; slotEach is where
// ProgramsOfIPv6 has the other program (HOOK_TO_UPLINK_EACH).
const (
	UntrackedOfIPv6 = "weir_xdp_ipv6"
	slotEach        = 5
)

// Untracked are the two programs of a family.
type Untracked struct {
	Of        *Collection // whose maps they have
	all       []*Programs
	Each      *ebpf.Program
	Arrive    *ebpf.Program // nil with ArriveErr
	ArriveErr error
}

// LoadUntracked loads the programs of a family alongside those that it has, with the same maps. A
// kernel that has no use for the one in XDP is no error.
func LoadUntracked(l *Collection) (*Untracked, error) {
	g := &Untracked{Of: l}
	var err error
	if g.Each, err = g.load(EachProgram); err != nil {
		g.Close()
		return nil, err
	}
	g.Arrive, g.ArriveErr = g.load(ArriveProgram)
	return g, nil
}

func (g *Untracked) load(name string) (*ebpf.Program, error) {
	p, err := loadPrograms(g.Of, nil, name)
	if err != nil {
		return nil, err
	}
	g.all = append(g.all, p)
	return p.Programs[name], nil
}

// Close unloads them; nil has none.
func (g *Untracked) Close() {
	if g == nil {
		return
	}
	for _, c := range g.all {
		c.Close()
	}
}

// CallUntracked makes IPv4's programs call these of IPv6, or none.
func (l *Collection) CallUntracked(arrive, each *ebpf.Program) error {
	_, err1 := setCall(l.Maps[UntrackedOfIPv6], 0, ArriveProgram, arrive)
	_, err2 := setCall(l.Maps[ProgramsOfIPv6], slotEach, EachProgram, each)
	return errors.Join(err1, err2)
}
