// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
)

// Preloaded is what an upgrade to another layout of maps has loaded before its agent works: the
// programs, for which the verifier takes seconds, and their maps, which have no pins yet. The nil
// pointer is one with nothing in it.
type Preloaded struct {
	four, six *Collection // nil = not loaded, or taken
	taken     *Collection // what four was
	sizes     map[string]uint32
	constants Constants
}

// Preload loads the programs where maps of another layout are pinned below root and none of this
// one: those of IPv6, too, where that layout has its maps. Nothing that others see is changed. It
// returns nil where there is nothing to load before.
func Preload(root string, sizes map[string]uint32, c Constants, log *slog.Logger) (*Preloaded, error) {
	if pinned, err := hasSettings(bpffs.MapsDir(root)); pinned || err != nil {
		return nil, err
	}
	layouts, err := OldLayouts(root)
	if len(layouts) == 0 || err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	began := time.Now()
	p := &Preloaded{sizes: maps.Clone(sizes), constants: c}
	if p.four, err = Load(nil, "", sizes, c, log); err != nil {
		return nil, err
	}
	if both, err := hasSettings(filepath.Join(layouts[0], bpffs.Folders[bpffs.IPv6])); both && err == nil {
		if p.six, err = Load(p.four, "", sizes, c, log); err != nil {
			log.Warn("the programs of IPv6 are loaded later", "error", err)
		}
	}
	log.Info("the programs are loaded; the agent before works until its place is taken", "layout before", filepath.Base(layouts[0]), "took", time.Since(began).Round(time.Millisecond))
	return p, nil
}

// hasSettings reports whether the maps of a family are pinned in a folder.
func hasSettings(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, "weir_settings"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Take returns what was loaded of a family, of IPv6 with four, and pins its maps in dir. It returns
// nil where nothing was, with other sizes or constants, or where maps are in dir by now.
func (p *Preloaded) Take(four *Collection, dir string, sizes map[string]uint32, c Constants) (*Collection, error) {
	if p == nil || dir == "" || !maps.Equal(p.sizes, sizes) || p.constants != c {
		return nil, nil
	}
	from := &p.four
	if four != nil {
		from = &p.six
		if four != p.taken {
			return nil, nil
		}
	}
	if pinned, err := hasSettings(dir); *from == nil || pinned || err != nil {
		return nil, err
	}
	l := *from
	for name, m := range l.PinnedMaps() {
		if strings.HasPrefix(name, ".") {
			continue // data of programs
		}
		if err := bpffs.PinOver(m, filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("pinning map %s: %w", name, err)
		}
		l.pinned++
	}
	if *from = nil; four == nil {
		p.taken = l
	}
	return l, nil
}

// Close forgets what was not taken.
func (p *Preloaded) Close() {
	if p == nil {
		return
	}
	for _, l := range []*Collection{p.four, p.six} {
		if l != nil {
			l.Close()
		}
	}
	p.four, p.six = nil, nil
}
