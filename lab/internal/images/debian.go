// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weir-net/weir/lab/internal/again"
)

const suite = "bookworm"

// debianPackages are what upstream's test images have from their distribution, and
// nginx.
var debianPackages = []string{
	"bind9-dnsutils", "busybox-static", "ca-certificates", "conntrack", "curl", "iperf", "iproute2", "iptables", "iputils-ping",
	"netcat-openbsd", "nftables", "nginx-light", "procps", "socat", "tcpdump", "wget",
}

// notInImage stay empty in the layer: caches, documentation, and folders that a
// container runtime fills.
var notInImage = map[string]bool{
	"var/cache/apt": true, "var/lib/apt/lists": true, "var/log": true, "usr/share/doc": true, "usr/share/man": true,
	"usr/share/locale": true, "usr/share/info": true, "dev": true, "proc": true, "sys": true, "run": true, "tmp": true,
}

// debian is a small Debian, shared by the images that need a distribution.
func (b *Builder) debian() layer {
	packages := strings.Join(debianPackages, ",")
	return layer{name: "debian", key: key(suite, packages), write: func(ctx context.Context, w io.Writer) error {
		// Always the same folder, so that one of a killed build goes away.
		root := filepath.Join(b.Cache, "debian.part")
		defer os.RemoveAll(root)
		args := []string{"--variant=minbase", "--include=" + packages, suite, root}
		if m := mirror(); m != "" {
			args = append(args, m)
		}
		err := again.Do(ctx, func() error {
			if err := os.RemoveAll(root); err != nil {
				return fmt.Errorf("remove an unfinished Debian: %w", err)
			}
			if err := os.MkdirAll(root, 0o755); err != nil {
				return fmt.Errorf("make a folder for Debian: %w", err)
			}
			return run(ctx, b.Cache, "debootstrap", args...)
		})
		if err != nil {
			return fmt.Errorf("install Debian into a folder: %w", err)
		}
		return writeTree(w, root, notInImage)
	}}
}

var (
	uris    = regexp.MustCompile(`(?m)^URIs:\s*(\S+)`)
	oneLine = regexp.MustCompile(`(?m)^deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)`)
)

// mirror is where this machine gets Debian's packages from; empty leaves the
// choice to debootstrap.
func mirror() string {
	paths, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, path := range append([]string{"/etc/apt/sources.list"}, paths...) {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if m := mirrorOf(string(raw)); m != "" {
			return m
		}
	}
	return ""
}

// mirrorOf finds the first source of the suite itself, in either format of
// sources.list(5).
func mirrorOf(sources string) string {
	for _, stanza := range strings.Split(sources, "\n\n") {
		if m := uris.FindStringSubmatch(stanza); m != nil && regexp.MustCompile(`(?m)^Suites:.*\b`+suite+`(\s|$)`).MatchString(stanza) {
			return m[1]
		}
	}
	for _, m := range oneLine.FindAllStringSubmatch(sources, -1) {
		if m[2] == suite {
			return m[1]
		}
	}
	return ""
}
