// SPDX-License-Identifier: Apache-2.0

package routertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/nettest"
)

// startOpenBGPD starts bgpd, and waits until it answers bgpctl.
func (r *Router) startOpenBGPD(t *testing.T, c Config) {
	t.Helper()
	// Processes of it give up root, as a user that no package has made, for an empty folder.
	nettest.Must(t, os.Mkdir(filepath.Join(r.root, r.dir, "empty"), 0o755)) //nolint:gosec // for that user
	r.write(t, "passwd", "root:x:0:0::/:/bin/false\n_openbgpd:x:998:998::"+r.dir+"/empty:/bin/false\n")
	r.write(t, "group", "root:x:0:\n_openbgpd:x:998:\n")
	r.write(t, "bgpd.conf", openbgpdConfig(c, r.dir))
	r.run(t, r.sbin+"/bgpd", "-d", "-v", "-f", r.dir+"/bgpd.conf")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if out, err := r.tell("show"); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatalf("openbgpd: %v: %s", err, out)
		}
	}
}

// users is the beginning of a script that gives OpenBGPD its user, for itself alone.
func (r *Router) users() string {
	if r.Kind != "openbgpd" {
		return ""
	}
	return fmt.Sprintf(`mount --bind "$0%[1]s/passwd" "$0/etc/passwd" && mount --bind "$0%[1]s/group" "$0/etc/group" && `, r.dir)
}

// reload gives OpenBGPD another configuration. Sessions go on.
func (r *Router) reload(t *testing.T, c Config) {
	t.Helper()
	r.write(t, "bgpd.conf", openbgpdConfig(c, r.dir))
	if out, err := r.tell("reload"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func openbgpdConfig(c Config, dir string) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "AS %d\nrouter-id %s\nsocket %q\nconnect-retry 1\n", c.ASN, c.ID, dir+"/ctl")
	if c.Hold > 0 {
		fmt.Fprintf(b, "holdtime %d\n", c.Hold)
	}
	for _, p := range c.Networks {
		fmt.Fprintf(b, "network %s\n", p)
	}
	for _, n := range c.Neighbours {
		// It offers both families on each session; the node takes that of the addresses.
		fmt.Fprintf(b, "neighbor %s {\n  remote-as %d\n  local-address %s\n  announce IPv4 unicast\n  announce IPv6 unicast\n", n.Remote, n.ASN, n.Local)
		if n.Password != "" {
			fmt.Fprintf(b, "  tcp md5sig password %q\n", n.Password)
		}
		if n.Waits {
			fmt.Fprint(b, "  passive\n")
		}
		if n.Multihop {
			fmt.Fprint(b, "  multihop 255\n")
		}
		if n.Client {
			fmt.Fprint(b, "  route-reflector\n")
		}
		fmt.Fprint(b, "}\n")
	}
	fmt.Fprint(b, "allow from any\nallow to any\n")
	for _, one := range c.Communities {
		fmt.Fprintf(b, "match to any set community %s\n", one)
	}
	return b.String()
}
