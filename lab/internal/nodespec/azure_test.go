// SPDX-License-Identifier: Apache-2.0

package nodespec

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/plan"
)

// TestAzure: a node in a virtual network has Azure's plugin with addresses of a subnet or of an
// overlay, and no address is two nodes'.
func TestAzure(t *testing.T) {
	for proxy, want := range map[plan.Proxy]struct {
		pods          int
		net, not, max string
	}{
		plan.ProxyWeirOnAzure:        {84, "172.31.0.0/24", "172.31.0.0/23", "maxPods: 86\n"},
		plan.ProxyWeirOnAzureOverlay: {254, "10.244.0.0/16", "10.244.0.0/16", "maxPods: 250\n"},
	} {
		seen := map[netip.Addr]string{}
		for node, s := range render(t, proxy) {
			for path, want := range map[string]bool{
				cniConf + "/10-azure.conflist": true, cniBin + "/azure-vnet": true, cniBin + "/portmap": true, azureConf: true,
				cniConf + "/10-lab.conflist": false, cniBin + "/ptp": false,
			} {
				if _, is := s.find(path); is != want {
					t.Errorf("%s, %s: %s is there: %v", proxy, node, path, is)
				}
			}
			last := s.Daemons[len(s.Daemons)-1]
			if !strings.Contains(daemons(s), "azure-cns") || last.Name != "kubelet" || last.After[len(last.After)-1] != "http://127.0.0.1:10090/healthz" {
				t.Errorf("%s, %s: daemons %s; the kubelet waits for %v", proxy, node, daemons(s), last.After)
			}
			conflist, _ := s.find(cniConf + "/10-azure.conflist")
			if overlay := strings.Contains(conflist.Content, "v4overlay"); overlay != (proxy == plan.ProxyWeirOnAzureOverlay) {
				t.Errorf("%s, %s: %s", proxy, node, conflist.Content)
			}
			conf, _ := s.find(azureConf)
			var c struct {
				Node          netip.Prefix
				Pods          []netip.Addr
				NonMasquerade []string
			}
			if err := json.Unmarshal([]byte(conf.Content), &c); err != nil || len(c.Pods) != want.pods || len(c.NonMasquerade) != 1 || c.NonMasquerade[0] != want.not || c.Node.Bits() != 24 {
				t.Errorf("%s, %s: %v, %s", proxy, node, err, conf.Content)
			}
			for _, a := range append(c.Pods, c.Node.Addr()) {
				if seen[a] != "" || a != c.Node.Addr() && !netip.MustParsePrefix(want.net).Contains(a) {
					t.Errorf("%s, %s: %s is not its own (%s)", proxy, node, a, seen[a])
				}
				seen[a] = node
			}
			kubelet, _ := s.find(kubeletYAML)
			if !strings.Contains(kubelet.Content, want.max) {
				t.Errorf("%s, %s: want %s", proxy, node, want.max)
			}
		}
	}
}
