// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// TestDomainNamesNodeLocal holds that names are known of answers that a process of the pod's own
// node gives, as NodeLocal DNSCache does: at 169.254.20.10, and at the cluster's DNS address where
// that is not translated (bpfExcludeCIDRsFromNAT).
func TestDomainNamesNodeLocal(t *testing.T) {
	t.Parallel()
	t.Run("ebpf-IPv4", func(t *testing.T) { testDomainNamesNodeLocal(t, ipv4) })
	if hasQueues(t) {
		t.Run("nft-IPv4", func(t *testing.T) { testDomainNamesNodeLocal(t, ipv4) })
	}
}

func testDomainNamesNodeLocal(t *testing.T, fam family) {
	const local, cluster = "169.254.20.10", "10.96.0.10"
	f := namesFixture(t, fam, "*.names.test")
	run(t, "ip -n %[1]s link add nodelocaldns type bridge; ip -n %[1]s addr add %[2]s/32 dev nodelocaldns; ip -n %[1]s link set nodelocaldns up", f.n1.netns, local)
	serve := func(addr string) {
		t.Helper()
		if a := f.n1.call(request{Op: "name server", Addr: addr + ":53"}); a.Err != "" {
			t.Fatal(a.Err)
		}
	}
	serve(local)
	own := []netip.Addr{netip.MustParseAddr(local)}
	f.n1.local = func(l *model.Local) { l.HostAddrs = append(l.HostAddrs, own...) }
	f.apply()
	f.connects("asked of the node's own server", local, "n%d.names.test", 20, 20, 20, 0)
	f.connects("another name", local, "n%d.other.test", 50, 2, 0, 2)
	f.connects("by TCP", local, "huge.names.test", 0, 1, zoneHuge, 0)

	run(t, "ip -n %s addr add %s/32 dev nodelocaldns", f.n1.netns, cluster)
	own = append(own, netip.MustParseAddr(cluster))
	f.cluster.Settings.ExcludeFromNAT = []netip.Prefix{netip.MustParsePrefix(cluster + "/32")}
	f.apply()
	serve(cluster)
	run(t, "ip -n %s link set eth0 down", f.n2.netns) // nobody but the node's own server could answer
	f.connects("asked at the cluster's address", cluster, "n%d.names.test", 60, 20, 20, 0)
}
