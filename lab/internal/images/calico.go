// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	_ "embed"
	"strings"

	"github.com/weir-net/weir/lab/internal/build"
)

// The names of Calico's images.
const (
	CalicoNodeImage = "docker.io/calico/node:" + build.CalicoVersion
	CalicoCNIImage  = "docker.io/calico/cni:" + build.CalicoVersion
)

//go:embed files/calico-node.sh
var calicoNodeScript string

// SeedWithCalico adds Calico's images to a seed. Both names are one image: Debian with iptables,
// the node's daemon, and the plugins.
func (b *Builder) SeedWithCalico(ctx context.Context, base string) (string, error) {
	contents := key(b.Programs.Rel("calico-node"), b.Programs.Rel("calico"), b.Programs.Rel("portmap"), calicoNodeScript, b.debian().key)
	return b.seedWith(ctx, base, contents, "Calico's images", func(archive string) error {
		debian, err := b.layer(ctx, b.debian())
		if err != nil {
			return err
		}
		entries, err := ipset()
		if err != nil {
			return err
		}
		const plugins = "opt/cni/bin/"
		entries = append(entries, program("usr/bin/calico-node", b.Programs.Path("calico-node")),
			script("usr/local/bin/start-calico-node", calicoNodeScript), program(plugins+"portmap", b.Programs.Path("portmap")))
		for name, of := range map[string]string{"calico": "calico", "calico-ipam": "calico", "install": "install"} {
			entries = append(entries, program(plugins+name, b.Programs.Path(of)))
		}
		programs, err := b.layer(ctx, files("calico", contents, entries...))
		if err != nil {
			return err
		}
		return image{tags: []string{CalicoNodeImage, CalicoCNIImage}, layers: []string{debian, programs},
			cmd: []string{"/usr/local/bin/start-calico-node"}}.write(archive)
	})
}

// ipset is what that Debian lacks for Felix. Its folder lib is a link, which a folder of that name
// in a layer above would replace.
func ipset() ([]entry, error) {
	all, err := withLibraries("ipset", "usr/sbin/ipset")
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, e := range all {
		if strings.HasPrefix(e.path, "lib/") {
			e.path = "usr/" + e.path
		}
		if strings.HasPrefix(e.path, "usr/") && !strings.HasSuffix(e.path, "/") {
			out = append(out, e)
		}
	}
	return out, nil
}
