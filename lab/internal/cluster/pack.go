// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weir-net/weir/lab/internal/build"
	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/plan"
	"github.com/weir-net/weir/lab/internal/progress"
)

// packed is what a folder holds that Pack made. As the cache of a lab it is all that the lab needs
// besides Weir's programs, on a machine without a Go toolchain and without a network.
type packed struct {
	// Proxy is of the labs that can be started from it.
	Proxy    plan.Proxy
	Programs map[string]string // program → its folder below bin
}

const (
	packedIndex  = "packed.json"
	packedSeed   = "seed"
	packedCalico = "calico"
)

// Pack makes a folder with what a lab of o's proxy needs, by hard links where that can be: it has
// to be on the file system of the cache.
func Pack(ctx context.Context, o Options, to string, p *progress.Reporter) error {
	if err := os.Mkdir(to, 0o711); err != nil {
		return fmt.Errorf("make a folder to pack into: %w", err)
	}
	set, seed, err := prepare(ctx, o, p)
	if err != nil {
		return err
	}
	index := packed{Proxy: o.Proxy, Programs: set.Selected(o.programs())}
	for name := range index.Programs {
		target := filepath.Join(to, "bin", set.Rel(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.Link(set.Path(name), target)); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := images.Clone(seed, filepath.Join(to, packedSeed)); err != nil {
		return err
	}
	if o.Proxy == plan.ProxyCalico {
		src, err := calicoSource(ctx, o, p)
		if err == nil {
			err = os.CopyFS(filepath.Join(to, packedCalico, "manifests"), os.DirFS(filepath.Join(src, "manifests")))
		}
		if err != nil {
			return fmt.Errorf("pack Calico's manifests: %w", err)
		}
	}
	return writeJSON(filepath.Join(to, packedIndex), index)
}

// unpack finds what a lab needs in a cache that Pack made; fs.ErrNotExist says that it is another.
func unpack(o Options) (*build.Set, string, error) {
	raw, err := os.ReadFile(filepath.Join(o.Cache, packedIndex))
	if err != nil {
		return nil, "", err
	}
	var index packed
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, "", fmt.Errorf("read %s of the cache: %w", packedIndex, err)
	}
	if index.Proxy != o.Proxy {
		return nil, "", fmt.Errorf("%s was packed for labs with %s and has not what one with %s needs", o.Cache, index.Proxy, o.Proxy)
	}
	return build.Open(filepath.Join(o.Cache, "bin"), index.Programs), filepath.Join(o.Cache, packedSeed), nil
}

// calicoSource is the folder of Calico's module, or what Pack took of it.
func calicoSource(ctx context.Context, o Options, p *progress.Reporter) (string, error) {
	kept := filepath.Join(o.Cache, packedCalico)
	if _, err := os.Stat(filepath.Join(o.Cache, packedIndex)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return kept, err
	}
	return (&build.Builder{Cache: o.Cache, Progress: p}).CalicoSource(ctx)
}
