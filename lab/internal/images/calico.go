// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

//go:embed files/calico-sv.sh
var calicoServiceScript string

// CalicoBGP is what Calico's image has besides where nodes speak BGP.
type CalicoBGP struct {
	BIRD  string // the program, of BIRD 1.6
	Confd string // the folder with the templates of its configuration
}

// SeedWithCalico adds Calico's images to a seed. Both names are one image: Debian with iptables,
// the node's daemon, and the plugins; with bgp, BIRD, too.
func (b *Builder) SeedWithCalico(ctx context.Context, base string, bgp *CalicoBGP) (string, error) {
	more, err := bgp.entries()
	if err != nil {
		return "", err
	}
	contents := key(b.Programs.Rel("calico-node"), b.Programs.Rel("calico"), b.Programs.Rel("portmap"), calicoNodeScript, b.debian().key)
	for _, e := range more {
		contents = key(contents, e.path, e.content)
	}
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
		entries = append(entries, more...)
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

// tunnelOfRoute is a statement that Calico's own BIRD has besides those of BIRD 1.6: it is about
// the device of IP in IP, which labs have not.
var tunnelOfRoute = regexp.MustCompile(`krt_tunnel = [^;]*;`)

// entries are those of IPv4: the program, and the templates.
func (c *CalicoBGP) entries() ([]entry, error) {
	if c == nil {
		return nil, nil
	}
	out := []entry{program("usr/sbin/bird", c.BIRD), script("usr/local/bin/sv", calicoServiceScript)}
	for _, name := range []string{"bird", "bird_aggr", "bird_ipam"} {
		for _, file := range []string{"conf.d/" + name + ".toml", "templates/" + name + ".cfg.template"} {
			raw, err := os.ReadFile(filepath.Join(c.Confd, file))
			if err != nil {
				return nil, fmt.Errorf("read what confd of Calico makes the configuration of BIRD from: %w", err)
			}
			out = append(out, text("etc/calico/confd/"+file, tunnelOfRoute.ReplaceAllLiteralString(string(raw), "")))
		}
	}
	return append(out, dir("etc/calico/confd/config/", 0o755)), nil
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
