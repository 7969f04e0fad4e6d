// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/plan"
)

// TestBGPOfRacks: each node has a session with the router in its own network, and the router one
// with each node; BIRD takes its configuration where it is installed.
func TestBGPOfRacks(t *testing.T) {
	for _, family := range []plan.Family{plan.IPv4, plan.Dual} {
		l, err := plan.New("t", 2, family, true)
		if err != nil {
			t.Fatal(err)
		}
		conf, objects := birdConfig(l), bgpObjects(l)
		for _, want := range []string{
			"local 172.31.1.1 as 64999;\n  neighbor 172.31.1.207 as 64512;", "local 172.31.2.1 as 64999;\n  neighbor 172.31.2.208 as 64512;",
		} {
			if !strings.Contains(conf, want) {
				t.Errorf("%s: BIRD is not told %q: %s", family, want, conf)
			}
		}
		for _, want := range []string{
			`{nodeSelector: "kubernetes.io/hostname in {'cp', 'worker1'}", peerIP: "172.31.1.1",`, `{nodeSelector: "kubernetes.io/hostname in {'worker2'}", peerIP: "172.31.2.1",`,
		} {
			if !strings.Contains(objects, want) {
				t.Errorf("%s: no BGPPeer has %q: %s", family, want, objects)
			}
		}
		if calicos := calicoBGP(l); strings.Count(calicos, "kind: BGPPeer") < 2 || strings.Contains(calicos, "/v3") || strings.Count(calicos, "filters: [own]") != strings.Count(calicos, "kind: BGPPeer") {
			t.Errorf("%s: Calico is told %s", family, calicos)
		}
		six := family == plan.Dual
		if strings.Contains(conf, "neighbor fd00:172:31:2::208 as") != six || strings.Contains(objects, `peerIP: "fd00:172:31:2::1"`) != six {
			t.Errorf("%s: IPv6 %v: %s %s", family, !six, conf, objects)
		}
		if _, err := os.Stat(bird); err != nil {
			continue
		}
		path := filepath.Join(t.TempDir(), "bird.conf")
		if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(bird, "-p", "-c", path).CombinedOutput(); err != nil {
			t.Errorf("%s: BIRD refuses its configuration: %v: %s", family, err, out)
		}
	}
}
