// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// SlowProgram, besides what it does at its own hook, does all but the fast path for those that do
// not have it themselves: of uplinks, weir0 and the tunnel, and what unpacks IP in IP. CallsOfSlow
// is the map by which these call it. They hand the packet over in weir_scratch, so both maps are of
// one load: programs of an earlier agent call the one that came with them until they are replaced.
// The pin, which keeps the kernel from emptying the map when the agent ends, has its number in its
// name.
const (
	SlowProgram = "weir_to_workload"
	CallsOfSlow = "weir_slow_calls"
)

// CallSlow makes the programs of l's family call its SlowProgram, and reports whether they did
// otherwise until now.
func (l *Collection) CallSlow() (changed bool, err error) {
	return setCall(l.Maps[CallsOfSlow], 0, SlowProgram, l.Programs[SlowProgram])
}

// pinName is the name that a map of a load is pinned by.
func pinName(name string, m *ebpf.Map) string {
	if name != CallsOfSlow {
		return name
	}
	info, err := m.Info()
	if err != nil {
		return name
	}
	id, _ := info.ID()
	return fmt.Sprintf("%s-%d", name, id)
}

// UnpinOtherSlow lets go of what programs of earlier agents called, once none of these is attached.
// Dir is where l's maps are pinned.
func (l *Collection) UnpinOtherSlow(dir string) error {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for pinned maps: %w", err)
	}
	var errs []error
	for _, pin := range pins {
		if !strings.HasPrefix(pin.Name(), CallsOfSlow) || pin.Name() == pinName(CallsOfSlow, l.Maps[CallsOfSlow]) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, pin.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a pinned map: %w", err))
		}
	}
	return errors.Join(errs...)
}

// slowOf is the SlowProgram that a program calls; 0 = it calls none. The error says that it wants
// to, and cannot.
func slowOf(id ebpf.ProgramID) (ebpf.ProgramID, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return 0, fmt.Errorf("opening an attached program: %w", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("reading about an attached program: %w", err)
	}
	used, _ := info.MapIDs()
	for _, id := range used {
		slow, err := calledBy(id)
		if slow != 0 || err != nil {
			return slow, err
		}
	}
	return 0, nil
}

// calledBy is the program in a map where that is CallsOfSlow of some load, else 0.
func calledBy(id ebpf.MapID) (ebpf.ProgramID, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return 0, fmt.Errorf("opening a map of an attached program: %w", err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("reading about a map of an attached program: %w", err)
	}
	if m.Type() != ebpf.ProgramArray || info.Name != CallsOfSlow[:min(len(CallsOfSlow), nameKept)] {
		return 0, nil
	}
	var slow uint32
	switch err := m.Lookup(uint32(0), &slow); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return 0, fmt.Errorf("%s is not called", SlowProgram)
	case err != nil:
		return 0, fmt.Errorf("reading which programs are called: %w", err)
	}
	return ebpf.ProgramID(slow), nil
}
