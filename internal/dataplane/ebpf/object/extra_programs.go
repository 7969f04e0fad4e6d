// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// Programs are some that are in the kernel only while something asks for them, alongside those of a
// Collection.
type Programs struct {
	*ebpf.Collection
}

// loadPrograms loads programs of l's object with l's maps, and with new ones in the place of own.
func loadPrograms(l *Collection, own []string, names ...string) (*Programs, error) {
	spec, err := l.read()
	if err != nil {
		return nil, fmt.Errorf("reading the compiled programs: %w", err)
	}
	if err := Specialize(spec, nil, l.constants); err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(have string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, have) })
	replaced := map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		switch m := l.Maps[name]; {
		case strings.HasPrefix(name, "."), slices.Contains(own, name):
		case m == nil:
			delete(spec.Maps, name) // IPv4's alone
		default:
			ms.MaxEntries, replaced[name] = m.MaxEntries(), m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced})
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", strings.Join(names, ", "), err)
	}
	return &Programs{c}, nil
}

// Close unloads them; nil has none.
func (p *Programs) Close() {
	if p != nil {
		p.Collection.Close()
	}
}
