// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
)

const (
	attackTracking         = "a pod fills a node's connection tracking with connections of its own"
	attackTrackingTogether = "eight pods together fill a node's connection tracking"

	// tracked is what the data plane of these tests takes for nf_conntrack_max, which network
	// namespaces share.
	tracked = 8192
)

// newTracking is a fixture whose first node takes tracked for the size of its connection tracking.
func newTracking(t *testing.T, fam family) *fixture {
	f := newFixture(t, fam)
	// Connections stay for as long as a test takes.
	run(t, "ip netns exec %s sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=3600", f.n1.netns)
	f.n1.driver.kill()
	f.n1.driver.flows = tracked
	f.n1.driver.start()
	f.apply()
	return f
}

// tracks is how many connections a node has.
func tracks(t *testing.T, n *node) int {
	t.Helper()
	v, err := strconv.Atoi(strings.TrimSpace(run(t, "ip netns exec %s cat /proc/sys/net/netfilter/nf_conntrack_count", n.netns)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// fill lets pods make connections that are answered, until each is refused or the node has more
// than `enough` connections.
func (f *fixture) fill(pods []*pod, enough int) {
	f.t.Helper()
	const turn = 1000
	refused := make([]bool, len(pods))
	for port := 10000; slices.Contains(refused, false) && tracks(f.t, f.n1) <= enough; port += turn {
		if port+turn > 65535 {
			f.t.Fatalf("no port is left; refused: %v", refused)
		}
		answers := make([]answer, len(pods))
		var all sync.WaitGroup
		for i, p := range pods {
			if !refused[i] {
				all.Go(func() {
					answers[i] = p.call(request{Op: "hold", From: netip.AddrPortFrom(p.local.Addrs[0], uint16(port)).String(), Addr: f.c.at("8080"), Size: turn})
				})
			}
		}
		all.Wait()
		for i, a := range answers {
			if a.Err != "" {
				f.t.Fatal(a.Err)
			}
			refused[i] = refused[i] || a.Again < turn/4
		}
	}
}

// TestHostileConnections: a pod that fills connection tracking is held to a share of it, and nobody
// else is.
func TestHostileConnections(t *testing.T) { inNFTables(t, testHostileConnections) }

func testHostileConnections(t *testing.T, fam family) {
	record(t, attackTracking, hostile.Pod, fam)
	f := newTracking(t, fam)
	for i, nw := range networks {
		if a := f.a.call(request{Op: "open", Net: nw, Addr: f.c.at("8080"), ID: i}); a.Err != "" {
			t.Fatalf("%s: %s", nw, a.Err)
		}
	}
	f.fill([]*pod{f.a}, tracked*3/4)
	n := tracks(t, f.n1)
	t.Logf("the node has %d connections", n)
	if n > tracked*3/4 {
		t.Fatalf("the pod has begun most of %d connections of a table of %d, and goes on", n, tracked)
	}
	await.That(t, "who is held", func() error {
		f.apply()
		if held := f.n1.driver.last.Held; !slices.Equal(held, []string{"10.244.1.2"}) {
			return fmt.Errorf("held are %v", held)
		}
		return nil
	})
	if f.n1.driver.last.Shares == 0 {
		t.Error("nothing is counted as dropped for it")
	}
	for i, nw := range networks {
		f.a.refused(nw, f.c.at("8080"))
		f.a.refused(nw, f.b.at("8080"))
		if a := f.a.call(request{Op: "talk", ID: i}); a.Err != "" {
			t.Errorf("what the pod has open ends: %s: %s", nw, a.Err)
		}
		for range 5 {
			want(t, nw+" of another pod", f.b.reaches("c", nw, f.c.at("8080")), "10.244.1.3")
			want(t, nw+" of the node", f.n1.reaches("c", nw, f.c.at("8080")), "172.30.0.8")
			want(t, nw+" to the pod", f.c.reaches("a", nw, f.a.at("8080")), "10.244.2.2")
		}
	}
	// What is no longer there is not counted.
	run(t, "ip netns exec %s conntrack -F", f.n1.netns)
	await.That(t, "the pod may begin connections again", func() error {
		f.apply()
		if held := f.n1.driver.last.Held; len(held) > 0 {
			return fmt.Errorf("held are %v", held)
		}
		return nil
	})
	f.a.reaches("c", "tcp", f.c.at("8080"))
}

// TestHostileConnectionsTogether: nor is it filled by eight pods.
func TestHostileConnectionsTogether(t *testing.T) { inNFTables(t, testHostileConnectionsTogether) }

func testHostileConnectionsTogether(t *testing.T, fam family) {
	record(t, attackTrackingTogether, hostile.Pod, fam)
	f := newTracking(t, fam)
	pods := []*pod{f.a}
	for i := range 7 {
		pods = append(pods, f.n1.newPod(fmt.Sprint("attacker", i), nil))
	}
	f.apply()
	f.fill(pods, tracked)
	n := tracks(t, f.n1)
	t.Logf("the node has %d connections", n)
	if n > tracked*7/8 {
		t.Errorf("the node has %d connections of %d", n, tracked)
	}
	for range 20 {
		want(t, "another pod", f.b.reaches("c", "udp", f.c.at("8080")), "10.244.1.3")
	}
}
