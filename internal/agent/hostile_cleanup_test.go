// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// kernelHas is what clean-up has to leave as it was: interfaces, routes, rules, neighbours,
// filters, programs of this namespace, nftables.
func kernelHas(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, line := range []string{"ip -o link | sed 's/^[0-9]*: //; s/NO-CARRIER,//; s/,LOWER_UP//; s/ \\(state\\|qlen\\|mode\\|group\\|link\\/\\).*//'", "ip route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule",
		"ip neigh show proxy", "ip -6 neigh show proxy", "nft -s list ruleset", "tc filter show dev eth0 ingress", "tc filter show dev eth0 egress"} {
		// What ip says on its standard error is about namespaces of other tests, which come and go
		// meanwhile.
		text, err := exec.Command("sh", "-c", line).Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, text)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		slices.Sort(lines)
		for _, l := range lines {
			if strings.Contains(l, "fe80::") { // they come when the kernel has asked whether anybody has them
				continue
			}
			out = append(out, line[:strings.IndexByte(line+" ", ' ')]+": "+strings.TrimSpace(l))
		}
	}
	return out
}

// TestHostileLeftovers: after clean-up a node's kernel has what it had before Weir, of either data
// plane; pods that are left have no interface, and so nobody reaches them without policy.
func TestHostileLeftovers(t *testing.T) {
	const attack = "what Weir left in a node's kernel goes on after it was removed"
	hostile.Record(t, attack, hostile.Operator, hostile.EBPF, hostile.Both)
	hostile.Record(t, attack, hostile.Operator, hostile.NFTables, hostile.Both)
	if !inNamespace(t) {
		return
	}
	l := beyond(t, netip.MustParsePrefix("192.0.2.8/24"), netip.MustParsePrefix("192.0.2.70/24"))
	defer l.Close()
	log := slog.New(slog.DiscardHandler)
	for _, nftables := range []bool{false, true} {
		t.Run(fmt.Sprintf("nftables %t", nftables), func(t *testing.T) {
			before := kernelHas(t)
			dir := t.TempDir()
			mount := filepath.Join(dir, "bpf")
			if err := os.Mkdir(mount, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("bpf", mount, "bpf", 0, "mode=0700"); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(mount, 0)
			o := CleanUpOptions{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), BPFFS: filepath.Join(mount, "weir"),
				CNIConfDir: filepath.Join(dir, "net.d"), CNIBin: filepath.Join(dir, "weir-cni"), Log: log}
			foreign := filepath.Join(o.CNIConfDir, "20-other.conflist")
			for _, d := range []string{o.StateDir, o.RunDir, o.CNIConfDir} {
				if err := os.Mkdir(d, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range []string{o.CNIBin, filepath.Join(o.StateDir, "apiservers.json"), filepath.Join(o.CNIConfDir, "10-weir.conflist"), foreign} {
				if err := os.WriteFile(f, []byte("{}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "cali0000001"
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "pod1"}); err != nil {
				t.Fatal(err)
			}
			pod, err := netlink.LinkByName(attrs.Name)
			if err := errors.Join(err, netlink.LinkSetAlias(pod, "weir:default/a/c1"), netlink.LinkSetUp(pod)); err != nil {
				t.Fatal(err)
			}
			s := nodestate.New()
			s.Settings.Node, s.Settings.DataIfaces, s.Settings.InterfacePrefix = netip.MustParseAddr("192.0.2.8"), "^eth0$", "cali"
			s.Settings.Tunnel = nodestate.Tunnel{Port: 4789, VNI: 4096, MTU: 1450}
			s.Settings.SNATFirst, s.Settings.SNATLast = 20000, 29999
			s.Settings.PoolRoutes = map[netip.Prefix]int{netip.MustParsePrefix("10.244.0.0/16"): 1450}
			s.Addrs[s.Settings.Node] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
			s.Addrs[netip.MustParseAddr("192.0.2.70")] = nodestate.Addr{Kind: nodestate.AddrNode, Node: netip.MustParseAddr("192.0.2.70"), SameLink: true}
			s.Addrs[netip.MustParseAddr("10.244.1.2")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: attrs.Name, IfIndex: pod.Attrs().Index}
			s.Routes[netip.MustParsePrefix("10.244.9.0/26")] = nodestate.Route{Pool: true, Tunnel: true, Node: netip.MustParseAddr("192.0.2.70")}
			if err := applyAlone(t, nftables, o, s); err != nil {
				t.Fatal(err)
			}
			if len(kernelHas(t)) <= len(before) {
				t.Fatal("nothing is there to be removed")
			}
			busy, err := net.Listen("unix", filepath.Join(o.RunDir, "cni.sock"))
			if err != nil {
				t.Fatal(err)
			}
			if err := CleanUp(context.Background(), o); !errors.Is(err, ErrRunning) {
				t.Errorf("alongside an agent: %v", err)
			}
			busy.Close()
			for range 2 { // a second time there is nothing to do
				if err := CleanUp(context.Background(), o); err != nil {
					t.Fatal(err)
				}
			}
			if after := kernelHas(t); !slices.Equal(before, after) {
				for _, l := range after {
					if !slices.Contains(before, l) {
						t.Errorf("left: %s", l)
					}
				}
				for _, l := range before {
					if !slices.Contains(after, l) {
						t.Errorf("gone: %s", l)
					}
				}
			}
			for _, p := range []string{o.StateDir, o.RunDir, o.BPFFS, o.CNIBin, filepath.Join(o.CNIConfDir, "10-weir.conflist")} {
				if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is still there (%v)", strings.TrimPrefix(p, dir), err)
				}
			}
			if _, err := os.Stat(foreign); err != nil {
				t.Errorf("what is not Weir's is gone: %v", err)
			}
		})
	}
}

// applyAlone puts a state into the kernel by a driver, which ends then.
func applyAlone(t *testing.T, nftables bool, o CleanUpOptions, s *nodestate.State) error {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if nftables {
		d, err := nft.New(nft.Options{Logger: log, StateDir: o.StateDir})
		if err != nil {
			return err
		}
		return errors.Join(d.Apply(context.Background(), s, nodestate.All()), d.Close())
	}
	d, err := ebpf.New(ebpf.Options{Logger: log, BPFFS: o.BPFFS, SetRetval: true, NoTCX: kernel.Lacks(kernel.FeatureTCX), Sizes: map[string]uint32{"weir_flows": 1024, "weir_flows_new": 1024}})
	if err != nil {
		return err
	}
	return errors.Join(d.Apply(context.Background(), s, nodestate.All()), d.Close())
}

// A clean-up removes nothing under an agent that has the node's lock: one that has started answers
// no call yet.
func TestHostileCleanUpBesideAgent(t *testing.T) {
	hostile.Record(t, "a clean-up removes what an agent that starts alongside it makes", hostile.Operator, hostile.ControlPlane, hostile.Both)
	dir := filepath.Join(t.TempDir(), "weir")
	unlock, err := lockNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockNode(dir); !errors.Is(err, ErrRunning) {
		t.Errorf("alongside an agent: %v", err)
	}
	unlock()
	again, err := lockNode(dir)
	if err != nil {
		t.Fatalf("when the agent has ended: %v", err)
	}
	again()
}
