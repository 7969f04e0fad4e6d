// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

const (
	attackPinsRunning = "the pins of programs and maps are removed while the agent runs, and the agent is killed"
	attackPinsAfter   = "the pins of programs and maps are removed while no agent runs"
	attackPinsCalls   = "the map by which IPv4's programs call those of IPv6 is emptied while no agent runs"
)

// guarded is a node with two pods, whose interfaces have their links: server is reached by friend
// alone, and the others knock all the time.
type guarded struct {
	*fixture
	server, friend *pod
	others         []*worker
}

func newGuarded(t *testing.T, fam family) *guarded {
	g := &guarded{fixture: newFixture(t, fam)}
	g.n1.driver.kill()
	g.n1.driver.runs = true
	g.n1.driver.start()
	g.apply()
	g.server, g.friend = g.n1.newPod("server", map[string]string{"app": "server"}), g.n1.newPod("friend", map[string]string{"app": "friend"})
	g.server.listen("tcp", ":8080")
	g.put(allow("server", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("friend")}}))
	g.apply()
	g.awaitPins("the pods' interfaces have their links")
	if a := g.server.call(request{Op: "door", Net: "udp", Addr: ":9100"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	if a := g.friend.call(request{Op: "open", Net: "tcp", Addr: g.server.at("8080"), ID: 1}); a.Err != "" {
		t.Fatal(a.Err)
	}
	g.others = []*worker{g.b.worker, g.c.worker}
	for i, w := range g.others {
		if a := w.call(request{Op: "knock", ID: 90 + i, Net: "udp", Addr: g.server.at("9100"), Name: w.name, Every: 2}); a.Err != "" {
			t.Fatal(a.Err)
		}
	}
	return g
}

// awaitPins waits until a map and the links of the two pods are pinned.
func (g *guarded) awaitPins(what string) {
	g.t.Helper()
	if g.dataplane() == "nft" {
		return // it has none
	}
	await.That(g.t, what, func() error {
		pins := []string{"*/maps/weir_flows"}
		for _, p := range []*pod{g.server, g.friend} {
			for _, hook := range []string{"from_workload", "to_workload"} {
				pins = append(pins, fmt.Sprintf("links/%d-%s", p.local.IfIndex, hook))
			}
		}
		for _, p := range pins {
			if found, err := filepath.Glob(filepath.Join(g.n1.driver.bpffs, "weir", p)); err != nil || len(found) == 0 {
				return fmt.Errorf("%s is not pinned (%v)", p, err)
			}
		}
		return nil
	})
}

// losePins removes everything that is pinned.
func (g *guarded) losePins() {
	g.t.Helper()
	if err := os.RemoveAll(filepath.Join(g.n1.driver.bpffs, "weir")); err != nil {
		g.t.Fatal(err)
	}
}

// holds fails the test when the open connection does not go on for a while, or anybody else came
// in.
func (g *guarded) holds(when string) {
	g.t.Helper()
	for range 20 {
		if a := g.friend.call(request{Op: "talk", ID: 1}); a.Err != "" {
			g.t.Fatalf("%s: what policy allows ends: %s", when, a.Err)
		}
		time.Sleep(25 * time.Millisecond) // the others knock
	}
	g.denies(when)
}

// denies fails the test when anybody else came in.
func (g *guarded) denies(when string) {
	g.t.Helper()
	if came := g.server.call(request{Op: "arrivals"}).Arrived; len(came) > 0 {
		g.t.Fatalf("%s: policy denies %v", when, came)
	}
}

// TestHostilePins: whoever removes the pins while the agent runs finds them there again, and when
// the agent is killed then everything goes on.
func TestHostilePins(t *testing.T) { inBoth(t, testHostilePins) }

func testHostilePins(t *testing.T, fam family) {
	record(t, attackPinsRunning, hostile.Operator, fam)
	g := newGuarded(t, fam)
	g.holds("at first")
	g.losePins()
	g.awaitPins("the pins are there again")
	g.holds("when pins were removed")
	g.n1.driver.kill()
	g.holds("when the agent was killed")
	g.n1.driver.start()
	g.n1.apply()
	g.holds("with the next agent")
	want(t, "a new connection", g.friend.reaches("server", "tcp", g.server.at("8080")), g.friend.local.Addrs[0].String())
}

// TestHostilePinsAfter: where the pins are removed while no agent runs, so that all links end,
// policy stays in force at the interfaces, what it allows goes on, and the next agent takes it
// over.
func TestHostilePinsAfter(t *testing.T) { inBoth(t, testHostilePinsAfter) }

func testHostilePinsAfter(t *testing.T, fam family) {
	record(t, attackPinsAfter, hostile.Operator, fam)
	g := newGuarded(t, fam)
	g.holds("at first")
	g.n1.driver.kill()
	g.losePins()
	g.holds("without an agent and without pins")
	g.n1.driver.start()
	g.n1.apply()
	g.holds("with the next agent")
	g.awaitPins("the next agent has its pins")
	want(t, "a new connection", g.friend.reaches("server", "tcp", g.server.at("8080")), g.friend.local.Addrs[0].String())
}

// TestHostilePinsCalls: the kernel empties a map of programs when its pin goes, which can be before
// the links' pins go: IPv6's policy stays in force.
func TestHostilePinsCalls(t *testing.T) {
	record(t, attackPinsCalls, hostile.Operator, ipv6)
	g := newGuarded(t, ipv6) // nftables has no such map
	g.holds("at first")
	g.n1.driver.kill()
	found, err := filepath.Glob(filepath.Join(g.n1.driver.bpffs, "weir", "*", "maps", "weir_ipv6"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the map of IPv6's programs: %v (%v)", found, err)
	}
	calls, err := ebpf.LoadPinnedMap(found[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	for slot := range calls.MaxEntries() {
		if err := calls.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	at := g.server.local // whom the node's stack knows already
	run(t, "ip -n %s -6 neigh replace %s lladdr %s dev %s", g.n1.netns, at.Addrs[1], net.HardwareAddr(at.MAC[:]), at.Interface)
	links, err := filepath.Glob(filepath.Join(g.n1.driver.bpffs, "weir", "links", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links { // whatever would drop before the server's interface
		if !strings.HasSuffix(link, "-to_workload") {
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(500 * time.Millisecond) // the others knock
	g.denies("without the map of IPv6's programs")
	g.losePins()
	g.holds("without pins")
}
