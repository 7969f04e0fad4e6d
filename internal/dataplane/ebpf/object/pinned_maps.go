// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/kernel"
)

// openMap takes over the map that is pinned at path, or makes one and pins it there. It may adapt
// the size in spec to that of a map that is kept.
func (l *Collection) openMap(path string, spec *ebpf.MapSpec, log *slog.Logger) (m *ebpf.Map, err error) {
	old, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case err == nil:
		if l.keep(old, path, spec, log) {
			l.Found++
			return old, nil
		}
		defer func() {
			if old != m {
				old.Close()
			}
		}()
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	default:
		return nil, fmt.Errorf("opening the pinned map %s: %w", path, err)
	}
	m, err = ebpf.NewMap(spec)
	if err != nil && old != nil && isCarried(spec.Name) && spec.MaxEntries > old.MaxEntries() {
		wanted := spec.MaxEntries
		if spec.MaxEntries = old.MaxEntries(); spec.Compatible(old) == nil {
			log.Error("a map keeps its size: one of the wanted size cannot be made", "map", spec.Name,
				"entries", old.MaxEntries(), "configured", wanted, "setting", SizeSetting(spec.Name), "error", err)
			l.Found++
			return old, nil
		}
		spec.MaxEntries = wanted
	}
	if err != nil {
		return nil, fmt.Errorf("making map %s of %d entries: %w", spec.Name, spec.MaxEntries, err)
	}
	if old != nil {
		l.recreated[spec.Name] = true
		if isCarried(spec.Name) {
			if err := setAside(path); err != nil {
				m.Close()
				return nil, err
			}
		}
	}
	if err := bpffs.PinOver(m, path); err != nil {
		m.Close()
		return nil, fmt.Errorf("pinning map %s: %w", spec.Name, err)
	}
	return m, nil
}

func (l *Collection) keep(m *ebpf.Map, path string, spec *ebpf.MapSpec, log *slog.Logger) bool {
	err := spec.Compatible(m)
	if err == nil {
		return true
	}
	wanted := spec.MaxEntries
	spec.MaxEntries = m.MaxEntries()
	if spec.Compatible(m) != nil {
		spec.MaxEntries = wanted
		log.Warn("a pinned map has another layout and is made anew", "map", spec.Name, "error", err)
		return false
	}
	if isCarried(spec.Name) && isAside(path) {
		log.Warn("a map keeps its size until the agent's next start: the last change of its size was cut short",
			"map", spec.Name, "entries", m.MaxEntries(), "configured", wanted, "setting", SizeSetting(spec.Name))
		return true
	}
	if IsStateful(spec.Name) && !isCarried(spec.Name) {
		log.Warn("a map keeps its size until the node is restarted, so that nothing is lost",
			"map", spec.Name, "entries", m.MaxEntries(), "configured", wanted, "setting", SizeSetting(spec.Name))
		return true
	}
	spec.MaxEntries = wanted
	log.Info("a map changes its size", "map", spec.Name, "from", m.MaxEntries(), "to", wanted)
	return false
}

// UnpinAll removes the pins in a folder. What they name goes when nothing uses it any more.
func UnpinAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for pinned maps: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a pinned map: %w", err))
		}
	}
	return errors.Join(errs...)
}

// PrepareDirs makes the folders on bpffs.
func PrepareDirs(mount, root string) error {
	for _, dir := range []string{bpffs.MapsDir(root), bpffs.Maps6Dir(root), bpffs.LinksDir(root)} {
		if err := kernel.EnsureBPFFS(mount, dir); err != nil {
			return err
		}
	}
	return nil
}

// RemoveOldLayouts forgets the maps of other layouts, once no program of ours uses them.
func RemoveOldLayouts(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("looking for maps of older versions: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err != nil || n == abi.Number {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("removing maps of an older version: %w", err))
		}
	}
	return errors.Join(errs...)
}

// OldLayouts returns the folders of other layouts, the newest first. In each are folders of maps,
// as in ours.
func OldLayouts(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("looking for maps of other versions: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n != abi.Number {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b int) int { return b - a })
	var out []string
	for _, n := range numbers {
		out = append(out, filepath.Join(root, strconv.Itoa(n)))
	}
	return out, nil
}

// PinnedMaps walks the maps that have pins in the folder of this family, by the names of these.
func (l *Collection) PinnedMaps() iter.Seq2[string, *ebpf.Map] {
	return func(yield func(string, *ebpf.Map) bool) {
		for name, m := range l.Maps {
			if unpinned[name] && name != CallsOfSlow || l.Family == bpffs.IPv6 && (IsShared(name) || name == ProgramsOfIPv6 || name == UntrackedOfIPv6) {
				continue
			}
			if !yield(pinName(name, m), m) {
				return
			}
		}
	}
}
