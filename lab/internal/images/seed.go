// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/lab/internal/build"
)

// seedConfig is containerd without Kubernetes: it only unpacks.
const seedConfig = `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = %q
`

// Seed makes a containerd root that holds the images of the archives, unpacked.
// Importing them once and cloning the result for each node is what makes a lab
// start fast.
func (b *Builder) Seed(ctx context.Context, archives []string) (string, error) {
	version, err := exec.CommandContext(ctx, "containerd", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask containerd for its version (package containerd): %w", err)
	}
	var names []string
	for _, a := range archives {
		names = append(names, filepath.Base(a))
	}
	seed := filepath.Join(b.Cache, "seeds", key(recipe, string(version), strings.Join(names, " ")))
	unlock, err := build.Lock(ctx, b.Cache, "seeds")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(seed); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return seed, err
	}
	return seed, b.Progress.Step(fmt.Sprintf("unpack %d images", len(archives)), func() error { return makeSeed(ctx, "", seed, archives) })
}

// keptSeeds is how many seeds with Weir's image stay in the cache: enough for labs
// of different builds that start at the same time.
const keptSeeds = 6

// SeedWithWeir adds Weir's image, made from the programs in a folder, to a seed.
func (b *Builder) SeedWithWeir(ctx context.Context, base, dir string) (string, error) {
	contents, err := contentsOf(dir)
	if err != nil {
		return "", err
	}
	return b.seedWith(ctx, base, contents, "Weir's image", func(archive string) error { return Weir(dir, archive) })
}

// SeedWithBench adds the image of `weir bench` to a seed; without that program the seed stays as it
// is.
func (b *Builder) SeedWithBench(ctx context.Context, base, dir string) (string, error) {
	program, err := os.ReadFile(filepath.Join(dir, benchProgram))
	if errors.Is(err, fs.ErrNotExist) {
		return base, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the program of the benchmarks: %w", err)
	}
	return b.seedWith(ctx, base, key(benchProgram, string(program)), "image of weir bench", func(archive string) error { return Bench(dir, archive) })
}

// seedWith adds an image that is made anew to a seed. contents names what it is made of.
func (b *Builder) seedWith(ctx context.Context, base, contents, what string, write func(archive string) error) (string, error) {
	unlock, err := build.Lock(ctx, b.Cache, "seeds")
	if err != nil {
		return "", err
	}
	defer unlock()
	seed := filepath.Join(b.Cache, "seeds", weirSeeds+key(recipe, benchTag, filepath.Base(base), contents))
	if _, err := os.Stat(seed); err == nil {
		now := time.Now()
		return seed, os.Chtimes(seed, now, now)
	}
	err = b.Progress.Step(what, func() error {
		archive := filepath.Join(b.Cache, "images", "weir.tar")
		defer os.Remove(archive)
		if err := write(archive); err != nil {
			return err
		}
		return makeSeed(ctx, base, seed, []string{archive})
	})
	if err != nil {
		return "", err
	}
	return seed, prune(filepath.Join(b.Cache, "seeds"))
}

// benchTag distinguishes seeds whose images have the benchmark's name from those of before.
const benchTag = "bench"

const weirSeeds = "weir-"

// prune removes the oldest seeds with Weir's image.
func prune(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, weirSeeds+"*"))
	if err != nil {
		return fmt.Errorf("list seeds: %w", err)
	}
	age := map[string]time.Time{}
	for _, path := range found {
		if st, err := os.Stat(path); err == nil {
			age[path] = st.ModTime()
		}
	}
	sort.Slice(found, func(i, j int) bool { return age[found[i]].After(age[found[j]]) })
	for _, path := range found[min(len(found), keptSeeds):] {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove an old seed: %w", err)
		}
	}
	return nil
}

// makeSeed imports archives into a new seed, on top of another one if base is not
// empty.
func makeSeed(ctx context.Context, base, seed string, archives []string) error {
	part := seed + ".part"
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("remove an unfinished seed: %w", err)
	}
	defer os.RemoveAll(part)
	if err := os.MkdirAll(part, 0o711); err != nil {
		return fmt.Errorf("make the seed's folder: %w", err)
	}
	if base != "" {
		if err := Clone(base, part); err != nil {
			return err
		}
	}
	// Sockets have short paths, so they cannot be in the cache.
	tmp, err := os.MkdirTemp("", "weir-lab-seed-")
	if err != nil {
		return fmt.Errorf("make the seed's run folder: %w", err)
	}
	defer os.RemoveAll(tmp)
	socket, config := filepath.Join(tmp, "c.sock"), filepath.Join(tmp, "config.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, seedConfig, part, filepath.Join(tmp, "state"), socket), 0o600); err != nil {
		return fmt.Errorf("configure the seed's containerd: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, tmp, "containerd", "--config", config) }()
	importAll := func() error {
		if err := awaitFile(ctx, socket, ended); err != nil {
			return err
		}
		for _, a := range archives {
			if err := run(ctx, tmp, "ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", a); err != nil {
				return fmt.Errorf("unpack %s: %w", filepath.Base(a), err)
			}
		}
		return nil
	}
	if err := importAll(); err != nil {
		return err
	}
	cancel()
	<-ended //nolint:errcheck // its error is that it was killed, just now
	if err := os.Rename(part, seed); err != nil {
		return fmt.Errorf("put the seed in place: %w", err)
	}
	return nil
}

func awaitFile(ctx context.Context, path string, ended <-chan error) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return fmt.Errorf("the seed's containerd ended early: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// databases of a containerd root are written in place; all else is only ever
// replaced, and so can be shared by hard links.
var databases = map[string]bool{"meta.db": true, "metadata.db": true}

// Clone copies a seed for a node, sharing file contents with it.
func Clone(seed, to string) error {
	err := filepath.WalkDir(seed, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(seed, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return cloneDir(d, target)
		case d.Type()&fs.ModeSymlink != 0:
			return cloneLink(path, target)
		case databases[d.Name()]:
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, raw, 0o644)
		default:
			return os.Link(path, target)
		}
	})
	if err != nil {
		return fmt.Errorf("clone the images for a node: %w", err)
	}
	return nil
}

func cloneDir(d fs.DirEntry, target string) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("no owner known of %s", target)
	}
	if err := os.Chown(target, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	// After chown, which clears the set-ID bits.
	return syscall.Chmod(target, st.Mode&0o7777)
}

func cloneLink(path, target string) error {
	dest, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if err := os.Symlink(dest, target); err != nil {
		return err
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return err
	}
	return os.Lchown(target, int(st.Uid), int(st.Gid))
}
