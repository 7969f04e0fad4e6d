// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
)

// TestTableRepaired: what somebody takes away from the tables of the nftables driver comes back as
// it was, and so does what it is for.
func TestTableRepaired(t *testing.T) { inNFTables(t, testTableRepaired) }

func testTableRepaired(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.2", 30002, f.c)
	p := allow("b", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}})
	f.cluster.Policies[p.ID()] = p
	f.apply()
	table, sender := "ip weir", "10.244.1.2"
	if fam == ipv6 {
		table, sender = "ip6 weir", sixOf("10.244.1.2")
	}
	content := func() []string {
		return words(ownContent(run(t, "ip netns exec %s nft -s list table %s 2>&1 || true", f.n1.netns, table)))
	}
	whole, neighbours := content(), f.n1.knownNeighbours(t)
	if len(neighbours) == 0 {
		t.Error("no neighbour is known, not even the other node")
	}
	broken := uint64(0)
	for _, how := range []string{
		"delete table " + table,
		"flush table " + table,
		"flush chain " + table + " judge",
		"flush chain " + table + " forwarded; delete chain " + table + " forwarded",
		"delete element " + table + " senders { " + sender + " }",
	} {
		// Elements are looked for every 10 s at most, rules when the ruleset has changed.
		run(t, "ip netns exec %s nft '%s'", f.n1.netns, how)
		await.That(t, "the table after "+how, func() error {
			if now := content(); !slices.Equal(now, whole) {
				return fmt.Errorf("%d words of %d: %v are missing, %v are new", len(now), len(whole), missing(whole, now), missing(now, whole))
			}
			if gone := missing(neighbours, f.n1.knownNeighbours(t)); len(gone) > 0 {
				return fmt.Errorf("neighbours %v are missing", gone)
			}
			return nil
		})
		want(t, "after "+how, f.a.reaches("c", "tcp", "10.96.0.2:80"), "10.244.1.2")
		want(t, "after "+how, f.a.reaches("b", "tcp", f.b.at("8080")), "10.244.1.2")
		f.c.refused("tcp", f.b.at("8080"))
		if !strings.HasPrefix(how, "delete element") {
			broken++
		}
	}
	f.foundBroken(t, broken)
}

// TestDeviceTablesRepaired: so do the tables of what comes out of the tunnel, and of ARP.
func TestDeviceTablesRepaired(t *testing.T) { inNFTables(t, testDeviceTablesRepaired) }

func testDeviceTablesRepaired(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.routed = true
	f.apply()
	broken := uint64(0)
	for _, small := range []string{"netdev weir", "arp weir"} {
		list := func() string {
			return run(t, "ip netns exec %s nft -s list table %s 2>&1 | grep -v 'elements =' || true", f.n1.netns, small)
		}
		before := list()
		if !strings.Contains(before, "hook") {
			t.Errorf("there is no %s to begin with: %s", small, before)
		}
		for _, how := range []string{"delete", "flush"} {
			run(t, "ip netns exec %s nft %s table %s", f.n1.netns, how, small)
			await.That(t, small+" after "+how, func() error {
				if now := list(); now != before {
					return fmt.Errorf("%s\nwant:\n%s", now, before)
				}
				return nil
			})
			broken++
		}
	}
	f.foundBroken(t, broken)
}

// foundBroken: what is whole is not taken for broken. A table that was broken while the driver read
// its elements anew, every 10 s, is repaired by that, and not counted.
func (f *fixture) foundBroken(t *testing.T, most uint64) {
	t.Helper()
	if f.apply(); f.n1.driver.last.Tables == 0 || f.n1.driver.last.Tables > most {
		t.Errorf("a table was found broken %d times, want 1 to %d", f.n1.driver.last.Tables, most)
	}
}

// nftSet is a set or a map in what nft lists, with its name.
var nftSet = regexp.MustCompile(`(?ms)^\t(?:set|map) (\S+) \{$.*?^\t\}$`)

// ownContent is what nft lists of a table without the elements that traffic brings about: those
// that packets add, and the neighbours that the kernel finds.
func ownContent(list string) string {
	return nftSet.ReplaceAllStringFunc(list, func(set string) string {
		if nftSet.FindStringSubmatch(set)[1] == "neighbours" || strings.Contains(set, "flags dynamic") {
			return nftElements.ReplaceAllString(set, "")
		}
		return set
	})
}

// TestDenialsAreCounted: packets that policy denies are counted by the nftables driver, and stay
// counted when the table is made anew.
func TestDenialsAreCounted(t *testing.T) { inNFTables(t, testDenialsAreCounted) }

func testDenialsAreCounted(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.put(allow("b", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}}))
	f.apply()
	f.a.reaches("b", "udp", f.b.at("8080"))
	if n := f.n1.driver.last.Denied; n != 0 {
		t.Errorf("%d packets were denied before any was", n)
	}
	f.c.refused("udp", f.b.at("8080"))
	f.apply()
	denied := f.n1.driver.last.Denied
	if denied == 0 {
		t.Error("nothing is counted")
	}
	table := map[family]string{ipv4: "ip weir", ipv6: "ip6 weir"}[fam]
	run(t, "ip netns exec %s nft delete table %s", f.n1.netns, table)
	await.That(t, "the table is there again", func() error {
		f.apply()
		if f.n1.driver.last.Tables == 0 {
			return fmt.Errorf("it was not missed yet")
		}
		return nil
	})
	f.c.refused("udp", f.b.at("8080"))
	f.apply()
	if n := f.n1.driver.last.Denied; n <= denied {
		t.Errorf("%d packets are counted, %d were before", n, denied)
	}
}

// missing are the words that are in a and not in b.
func missing(a, b []string) []string {
	var out []string
	for _, w := range a {
		if !slices.Contains(b, w) {
			out = append(out, w)
		}
	}
	return out
}
