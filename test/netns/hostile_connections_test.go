// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
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
	// Connections stay for as long as a test takes, those too that are answered within two seconds
	// and then at rest: else a busy machine fills the table as slowly as they expire.
	run(t, "ip netns exec %s sysctl -qw net.netfilter.nf_conntrack_udp_timeout=3600 net.netfilter.nf_conntrack_udp_timeout_stream=3600", f.n1.netns)
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

// fill lets pods make connections that are answered, each from the ports from `first` on, until
// each is refused or the node has more than `enough` connections. After each turn of so many ports
// they pause: the driver counts once a second, and later on a busy machine.
func (f *fixture) fill(pods []*pod, first, enough, turn int, pause time.Duration) {
	f.t.Helper()
	refused := make([]bool, len(pods))
	for port := first; slices.Contains(refused, false) && tracks(f.t, f.n1) <= enough; port += turn {
		if port+turn > 65535 {
			f.t.Fatalf("no port is left; refused: %v", refused)
		}
		for i, made := range f.hold(pods, refused, port, turn) {
			refused[i] = refused[i] || made < turn/4
		}
		time.Sleep(pause)
	}
}

// hold lets those pods make so many connections, which are answered, that are not refused, and
// returns how many came about.
func (f *fixture) hold(pods []*pod, refused []bool, port, turn int) []int {
	f.t.Helper()
	made, answers := make([]int, len(pods)), make([]answer, len(pods))
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
		made[i] = a.Again
	}
	return made
}

// fillHalf lets pods make connections until more than half of the table is used, and the driver
// has seen that: on a machine that is busy otherwise it is late, and what eight pods begin until
// then is a matter of the machine. It returns the first port that no pod has used.
func (f *fixture) fillHalf(pods []*pod) (port int) {
	f.t.Helper()
	const turn = 64 // of all together a sixteenth of the table
	for port = 10000; tracks(f.t, f.n1) <= tracked/2; port += turn {
		if port > 30000 {
			f.t.Fatalf("the node has %d connections", tracks(f.t, f.n1))
		}
		f.hold(pods, make([]bool, len(pods)), port, turn)
	}
	table := map[family]string{ipv4: "ip weir", ipv6: "ip6 weir"}[f.family]
	await.That(f.t, "the driver sees that the table fills", func() error {
		if list := run(f.t, "ip netns exec %s nft list map %s %s", f.n1.netns, table, chains.MapShares); !strings.Contains(list, "elements") {
			return errors.New(list)
		}
		return nil
	})
	return port
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
	f.fill([]*pod{f.a}, 10000, tracked*3/4, 1000, 0)
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
	f.fill(pods, f.fillHalf(pods), tracked, 64, 2*time.Second)
	n := tracks(t, f.n1)
	t.Logf("the node has %d connections", n)
	if n > tracked*7/8 {
		t.Errorf("the node has %d connections of %d", n, tracked)
	}
	for range 20 {
		want(t, "another pod", f.b.reaches("c", "udp", f.c.at("8080")), "10.244.1.3")
	}
}
