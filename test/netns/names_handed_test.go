// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/nettest"
)

// TestDomainNamesHanded holds that answers which the programs cannot read count from the first
// connection on, too: the agent reads them on their way. Without an agent, or with one that stands
// still, they go on to the pod unread, and what the programs read counts as ever.
func TestDomainNamesHanded(t *testing.T) {
	t.Parallel()
	inEBPF(t, testDomainNamesHanded)
}

func testDomainNamesHanded(t *testing.T, fam family) {
	const server = "10.96.0.10"
	f := namesFixture(t, fam, "*.names.test")
	f.readerComes(7000)
	many := 100
	if os.Getenv(nettest.FiguresVariable) != "" {
		many = 5_000
	}
	f.connects("messages spread over segments", server, "n%d.split.names.test", 1000, many, many, 0)
	f.connects("chains spread over segments", server, "c%d.split.names.test", 100, 5, 5, 0)
	f.connects("100 addresses", server, "huge.names.test", 0, 1, zoneHuge, 0)
	f.connects("the same in pieces", server, "huge.split.names.test", 0, 1, zoneHuge, 0)
	f.connects("a name that policy has not", server, "n%d.split.other.test", 300, 2, 0, 2)
	f.connects("asked of nobody's server", f.b.local.Addrs[0].String(), "n%d.split.names.test", 400, 2, 0, 2)
	f.connects("what the programs read", server, "n%d.names.test", 500, 5, 5, 0)

	f.n1.driver.kill()
	began := time.Now()
	f.connects("spread over segments without an agent", server, "n%d.split.names.test", 600, 2, 0, 2)
	if took := time.Since(began); took >= asksAgain {
		t.Errorf("two look-ups and two connections that are denied took %v without an agent", took)
	}
	f.connects("known from before", server, "n%d.names.test", 1000, 2, 2, 0)
	f.n1.driver.start()
	f.apply()
	f.readerComes(7200)
	f.connects("after the start", server, "n%d.split.names.test", 700, 5, 5, 0)

	f.n1.driver.stop()
	time.Sleep(1200 * time.Millisecond)
	began = time.Now()
	f.connects("spread over segments while the agent stands still", server, "n%d.split.names.test", 800, 2, 0, 2)
	if took := time.Since(began); took >= asksAgain {
		t.Errorf("two look-ups and two connections that are denied took %v while the agent stood still", took)
	}
	f.connects("what the programs read while the agent stands still", server, "n%d.names.test", 810, 2, 2, 0)
	f.n1.driver.goOn()
	f.readerComes(7400)
	f.connects("when the agent goes on", server, "n%d.split.names.test", 900, 5, 5, 0)
}

// readerComes waits until the first node's driver reads what programs cannot: each try looks up a
// name that nobody asked for before, from n<first> on.
func (f *fixture) readerComes(first int) {
	f.t.Helper()
	var last answer
	for i := range 100 {
		a := f.a.call(request{Op: "firsts", Net: map[family]string{ipv4: "ip4", ipv6: "ip6"}[f.family], From: "10.96.0.10:53",
			Name: "n%d.split.names.test", ID: first + i, Size: 1, Timeout: 200})
		if a.Counters["connected"] == 1 {
			return
		}
		last = a
		time.Sleep(100 * time.Millisecond)
	}
	f.t.Fatalf("no driver reads answers that the programs cannot read: %+v", last)
}
