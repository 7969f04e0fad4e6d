// SPDX-License-Identifier: Apache-2.0

package images

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var library = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$`)

// nft is the nft program of this machine's nftables package, with the libraries that it is linked
// with, where a container finds them: the nftables data plane runs it. The names of protocols are
// those that nft prints.
func nft() ([]entry, error) {
	entries, err := withLibraries("nft", "nft")
	if err != nil {
		return nil, err
	}
	return append(entries, text("etc/protocols", "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n")), nil
}

// withLibraries is a program of this machine, at a path of an image, with the libraries that it is
// linked with where a container finds them.
func withLibraries(name, at string) ([]entry, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("look for %s (hack/setup.sh brings its package): %w", name, err)
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return nil, fmt.Errorf("look for the libraries of %s: %w", path, err)
	}
	entries := []entry{program(at, path)}
	folders := map[string]bool{}
	var libraries []entry
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		rel := strings.TrimPrefix(m[1], "/")
		for d := filepath.Dir(rel); d != "."; d = filepath.Dir(d) {
			folders[d] = true
		}
		libraries = append(libraries, program(rel, m[1]))
	}
	if len(libraries) == 0 {
		return nil, fmt.Errorf("ldd reports no libraries of %s: %s", path, out)
	}
	entries = append(entries, dirs(slices.Sorted(maps.Keys(folders))...)...)
	return append(entries, libraries...), nil
}
