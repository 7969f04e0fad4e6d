// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"

	"github.com/weir-net/weir/lab/internal/build"
)

// FlannelImage is the name of flannel's image.
const FlannelImage = "ghcr.io/flannel-io/flannel:" + build.FlannelVersion

// SeedWithFlannel adds flannel's image to a seed: Debian with iptables, the daemon, and the plugins
// that its network configuration calls. Its init containers copy the plugin flannel and the network
// configuration; the lab's image brings the others along.
func (b *Builder) SeedWithFlannel(ctx context.Context, base string) (string, error) {
	contents := key(b.Programs.Rel("flanneld"), b.Programs.Rel("flannel"), b.Programs.Rel("bridge"), b.debian().key, flannelInstall, flannelCopy)
	entries := []entry{program("opt/bin/flanneld", b.Programs.Path("flanneld")), script("opt/bin/install-conf", flannelInstall),
		program("flannel", b.Programs.Path("flannel")), script("usr/local/bin/cp", flannelCopy)}
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		entries = append(entries, program("plugins/"+name, b.Programs.Path(name)))
	}
	return b.seedWith(ctx, base, contents, "flannel's image", func(archive string) error {
		debian, err := b.layer(ctx, b.debian())
		if err != nil {
			return err
		}
		programs, err := b.layer(ctx, files("flannel", contents, entries...))
		if err != nil {
			return err
		}
		return image{tags: []string{FlannelImage}, layers: []string{debian, programs}, cmd: []string{"/opt/bin/flanneld"}}.write(archive)
	})
}

// flannelInstall is what flannel's image installs its network configuration with, and flannelCopy
// what its init container calls to install the plugin: nodes of distributions have the others,
// which the lab's have not.
const (
	flannelInstall = "#!/bin/sh\nexec /bin/cp -f \"$1\" \"$2\"\n"
	flannelCopy    = "#!/bin/sh\nset -e\n/bin/cp -f /plugins/* /opt/cni/bin/\nexec /bin/cp \"$@\"\n"
)
