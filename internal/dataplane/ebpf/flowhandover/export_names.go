// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// exportAffinities reports which backends clients with affinity have, and what pods were told of
// domain names.
func (g *exporters) exportAffinities(to Successor) error {
	if to == nil {
		return nil
	}
	now, err := g.clock.Now()
	if err != nil {
		return err
	}
	var all []conntrack.Affinity
	var errs []error
	for _, f := range g.families {
		some, err := f.affinities(now)
		all, errs = append(all, some...), append(errs, err)
	}
	return errors.Join(append(errs, to.Remember(all), exportNames(g.root, to))...)
}

// exportNames hands on what programs have noted of domain names; root is the folder of pins.
func exportNames(root string, to Successor) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs.MapsDir(root), "weir_names"), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the addresses of domain names: %w", err)
	}
	defer m.Close()
	all, err := flowtable.Told(m)
	return errors.Join(err, to.Learn(all))
}
