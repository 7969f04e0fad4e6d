// SPDX-License-Identifier: Apache-2.0

package images

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// image is what an archive is made of.
type image struct {
	tags       []string
	layers     []string // tar files, lowest first
	entrypoint []string
	cmd        []string
	stopSignal string
	path       string // where programs are looked for; the usual places if empty
}

// write makes a docker archive, which containerd imports. Layers stay uncompressed:
// they go from one folder of a machine to another.
func (i image) write(path string) error {
	img, err := i.assemble()
	if err != nil {
		return err
	}
	refs := map[name.Reference]v1.Image{}
	for _, t := range i.tags {
		ref, err := name.NewTag(t, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("image tag %s: %w", t, err)
		}
		refs[ref] = img
	}
	part := path + ".part"
	defer os.Remove(part)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the image folder: %w", err)
	}
	if err := tarball.MultiRefWriteToFile(part, refs); err != nil {
		return fmt.Errorf("write image archive %s: %w", path, err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("put image archive in place: %w", err)
	}
	return nil
}

func (i image) assemble() (v1.Image, error) {
	img := empty.Image
	for _, path := range i.layers {
		l, err := tarball.LayerFromFile(path, tarball.WithCompression(compression.None))
		if err != nil {
			return nil, fmt.Errorf("read layer %s: %w", path, err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			return nil, fmt.Errorf("add layer %s: %w", path, err)
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read image configuration: %w", err)
	}
	c = c.DeepCopy()
	path := i.path
	if path == "" {
		path = searchPath
	}
	c.Architecture, c.OS, c.Created = "amd64", "linux", v1.Time{Time: created}
	c.Config = v1.Config{Entrypoint: i.entrypoint, Cmd: i.cmd, Env: []string{"PATH=" + path}, WorkingDir: "/", StopSignal: i.stopSignal}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		return nil, fmt.Errorf("set image configuration: %w", err)
	}
	return img, nil
}
