// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/plan"
)

// bird is the program that speaks BGP on the router (Debian's bird2).
const bird = "/usr/sbin/bird"

// bgpInstallArgs are arguments of weir install for a lab with racks: nothing but BGP says where
// pods are.
func (u *starter) bgpInstallArgs() []string {
	if !u.o.BGP {
		return nil
	}
	return []string{"--vxlan-mode", "Never"}
}

// bgp starts BIRD on the router and gives all nodes sessions with it. It ends with the lab, as all
// that is in the router's network namespace.
func (u *starter) bgp(ctx context.Context) error {
	base := filepath.Join(dir(u.s.Name), "bird")
	if err := os.WriteFile(base+".conf", []byte(birdConfig(u.l)), 0o600); err != nil {
		return fmt.Errorf("write the router's configuration: %w", err)
	}
	cmd := exec.CommandContext(ctx, bird, "-c", base+".conf", "-s", base+".ctl", "-P", base+".pid")
	var out []byte
	err := network.Within(network.Path(plan.Scoped(u.s.Name, plan.Router)), func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("start BIRD on the router: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if u.o.Proxy == plan.ProxyCalico {
		return u.inControlPlane(ctx, []byte(calicoBGP(u.l)), u.set.Path("kubectl"), "--kubeconfig", KubeconfigPath(u.s.Name), "apply", "-f", "-")
	}
	return u.inControlPlane(ctx, []byte(bgpObjects(u.l)), filepath.Join(u.s.Weir, "weir"), "apply", "--kubeconfig", KubeconfigPath(u.s.Name), "-f", "-")
}

// birdConfig is that of the router: a session with each node in each family. What it learns it
// routes, and tells the others.
func birdConfig(l *plan.Lab) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "router id %s;\nprotocol device { scan time 2; }\n", plan.Gateway)
	for i, n := range l.Machines[0].Families {
		family := map[bool]string{true: "ipv4", false: "ipv6"}[n.Gateway.Is4()]
		fmt.Fprintf(b, "protocol kernel { %s { import none; export where source = RTS_BGP; }; }\n", family)
		for _, m := range l.Nodes() {
			n := m.Families[i]
			fmt.Fprintf(b, "protocol bgp %s_%s {\n  local %s as %d;\n  neighbor %s as %d;\n  graceful restart on;\n  connect retry time 2;\n  error wait time 1,5;\n  connect delay time 1;\n  %s { import all; export all; };\n}\n",
				m.Name, family, n.Gateway, plan.RouterASN, n.Addr.Addr(), plan.NodesASN, family)
		}
	}
	return b.String()
}

// calicoBGP are the objects of a lab with Calico: nodes have sessions with each other, by its
// defaults, and with the router, which learns from each of them what that one has itself. What it
// had from others the router would send there, and get back.
func calicoBGP(l *plan.Lab) string {
	const version, filter = "crd.projectcalico.org/v1", "own"
	return fmt.Sprintf("apiVersion: %s\nkind: BGPFilter\nmetadata: {name: %s}\nspec: {exportV4: [{action: Reject, source: RemotePeers}]}\n", version, filter) + bgpPeers(l, version, ", filters: ["+filter+"]")
}

// bgpObjects give each node a session with the router, and none with other nodes.
func bgpObjects(l *plan.Lab) string {
	const version = "projectcalico.org/v3"
	return fmt.Sprintf("apiVersion: %s\nkind: BGPConfiguration\nmetadata: {name: default}\nspec: {asNumber: %d, nodeToNodeMeshEnabled: false}\n", version, plan.NodesASN) + bgpPeers(l, version, "")
}

// bgpPeers give each node a session with the router at its own gateway, in each family. All nodes
// have one AS number, so they take routes that name it. more ends each spec.
func bgpPeers(l *plan.Lab, version, more string) string {
	b := &strings.Builder{}
	for _, far := range []bool{false, true} {
		var names []string
		for _, m := range l.Nodes() {
			if m.Far == far {
				names = append(names, fmt.Sprintf("'%s'", m.Name))
			}
		}
		if len(names) == 0 {
			continue
		}
		for i, gateway := range l.Gateways(far) {
			fmt.Fprintf(b, "---\napiVersion: %s\nkind: BGPPeer\nmetadata: {name: %s-ipv%d}\nspec: {nodeSelector: \"kubernetes.io/hostname in {%s}\", peerIP: \"%s\", asNumber: %d, numAllowedLocalASNumbers: 1%s}\n",
				version, map[bool]string{false: "rack", true: "far-rack"}[far], 4+2*i, strings.Join(names, ", "), gateway.Addr(), plan.RouterASN, more)
		}
	}
	return b.String()
}
