// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// TestDomainNamesQueue holds that nftables leads no answer to an agent that is not there, or stands
// still, and that one that is reads answers by TCP, too, spread over segments.
func TestDomainNamesQueue(t *testing.T) {
	t.Parallel()
	inNFTablesWithQueues(t, testDomainNamesQueue)
}

func testDomainNamesQueue(t *testing.T, fam family) {
	const server = "10.96.0.10"
	f := namesFixture(t, fam, "*.names.test")
	f.connects("messages spread over segments", server, "n%d.split.names.test", 1000, 50, 50, 0)
	f.connects("100 addresses", server, "huge.names.test", 0, 1, zoneHuge, 0)
	f.connects("the same in pieces", server, "huge.split.names.test", 0, 1, zoneHuge, 0)
	f.connects("a name that policy has not", server, "n%d.split.other.test", 300, 2, 0, 2)
	f.connects("asked of nobody's server by TCP", f.b.local.Addrs[0].String(), "n%d.split.names.test", 400, 2, 0, 2)

	f.another("*.elsewhere.test")
	f.apply()
	f.connects("a name of a rule about another port", server, "n%d.elsewhere.test", 450, 2, 0, 2)
	f.connects("the same addresses by a name of this port", server, "n%d.names.test", 450, 2, 2, 0)

	unread := func(what, name string, first int) {
		t.Helper()
		began := time.Now()
		f.connects(what, server, name, first, 2, 0, 2)
		if took := time.Since(began); took >= asksAgain {
			t.Errorf("%s: two look-ups and two connections that are denied took %v", what, took)
		}
	}
	f.n1.driver.kill()
	unread("without an agent", "n%d.names.test", 600)
	unread("by TCP without an agent", "n%d.split.names.test", 610)
	f.n1.driver.start()
	f.apply()
	f.readerComes(7200)
	f.connects("after the start", server, "n%d.names.test", 700, 5, 5, 0)

	f.n1.driver.stop()
	time.Sleep(1500 * time.Millisecond) // for a second rules take it that it reads
	unread("while the agent stands still", "n%d.names.test", 800)
	f.n1.driver.goOn()
	f.readerComes(7400)
	f.connects("when the agent goes on", server, "n%d.names.test", 900, 5, 5, 0)
}

// TestDomainNamesSwitch holds that what pods were told outlives a change of the data plane, in
// either direction.
func TestDomainNamesSwitch(t *testing.T) {
	t.Parallel()
	if hasQueues(t) {
		inEBPF(t, testDomainNamesSwitch)
	}
}

func testDomainNamesSwitch(t *testing.T, fam family) {
	const server = "10.96.0.10"
	f := namesFixture(t, fam, "*.names.test", "n105.long.exact.test")
	f.connects("with eBPF", server, "n%d.long.names.test", 100, 3, 3, 0)
	f.connects("by another pattern", server, "n105.long.exact.test", 0, 1, 1, 0)
	f.n1.switchTo("nft")
	f.dials("known from eBPF", 101, true)
	f.dials("known from eBPF by another pattern", 105, true)
	f.dials("known to nobody", 120, false)
	f.readerComes(6900)
	f.connects("with nftables", server, "n%d.long.names.test", 200, 3, 3, 0)
	f.n1.switchTo("ebpf")
	f.dials("known from eBPF all along", 102, true)
	f.dials("known from nftables", 201, true)
	f.dials("still known to nobody", 120, false)
	f.connects("with eBPF again", server, "n%d.long.names.test", 300, 3, 3, 0)
}

// TestHostileForgedQueued: what comes in the name of a trusted server, to the port that a pod asked
// from, teaches the pod nothing without the number of its question, and nothing after the answer to
// that.
func TestHostileForgedQueued(t *testing.T) {
	t.Parallel()
	inNFTablesWithQueues(t, func(t *testing.T, fam family) {
		record(t, "a DNS answer that a pod did not ask for says where a name of its policy leads", hostile.Link, fam)
		f := namesFixture(t, fam, "*.names.test")
		f.connects("between forged answers", "10.96.0.10", "n%d.forged.names.test", 1000, 10, 10, 0)
		f.dials("the address of the answer", 1005, true)
		f.dials("that of a second answer to the question", 2005, false)
		f.dials("that of an answer to no question", 3005, false)
	})
}

// forgeries are what comes before and after the answer to a question for n1<three digits>.forged:
// both say that names of the zone have other addresses.
func forgeries(q []byte) (before, after []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(q)
	if err != nil {
		return nil, nil
	}
	question, err := p.Question()
	if err != nil || !strings.HasPrefix(question.Name.String(), "n1") || !strings.Contains(question.Name.String(), ".forged.") {
		return nil, nil
	}
	forged := func(digit string, id uint16) []byte {
		m := dnsmessage.Message{Header: h, Questions: []dnsmessage.Question{question}}
		m.ID = id
		m.Questions[0].Name = dnsmessage.MustNewName(strings.Replace(question.Name.String(), "n1", "n"+digit, 1))
		b, err := m.Pack()
		if err != nil {
			return nil
		}
		return zoneAnswer(b, true)
	}
	return forged("3", h.ID^1), forged("2", h.ID)
}

// TestHostileQuestionsNoted: a pod that asks and asks takes no more room among the questions that
// the node has noted than its share, and others' names count on.
func TestHostileQuestionsNoted(t *testing.T) {
	t.Parallel()
	inNFTablesWithQueues(t, func(t *testing.T, fam family) {
		record(t, "a pod fills what the node notes of questions to DNS servers", hostile.Pod, fam)
		const server, many, rate, burst, keep = "10.96.0.10", 60_000, 5000, 500, 5 * time.Second
		f := namesFixture(t, fam, "*.names.test")
		f.put(&model.Policy{Kind: model.KindClusterNetworkPolicy, Name: model.Name{Name: "names-b"}, Tier: model.TierAdmin, AppliesEgress: true, Subject: model.Selector{Pods: hasApp("b")},
			Egress: []model.Rule{{Action: model.Allow, Peers: []model.Peer{{Domains: []string{"*.names.test"}}}},
				{Action: model.Allow, Ports: []model.PortRange{{Protocol: model.ProtocolUDP, First: 53, Last: 53}}}, {Action: model.Deny}}})
		f.apply()
		began := time.Now()
		if a := f.b.call(request{Op: "ask many", From: server + ":53", Size: many}); a.Err != "" {
			t.Fatal(a.Err)
		}
		noted := strings.Count(run(t, "ip netns exec %s nft list set %s weir-names asked", f.n1.netns, map[family]string{ipv4: "ip", ipv6: "ip6"}[fam]), " expires ")
		most := burst + int(min(time.Since(began), keep).Seconds()*rate) + 100
		if noted > most || noted == 0 {
			t.Errorf("%d of %d questions are noted after %v, want some, and %d at most", noted, many, time.Since(began), most)
		}
		f.connects("another pod's names", server, "n%d.names.test", 100, 20, 20, 0)
	})
}

// askMany sends r.Size questions to the name server r.From, and waits for no answer.
func askMany(r request) error {
	c, err := net.Dial("udp", r.From)
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range r.Size {
		b, err := (&dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(fmt.Sprintf("n%d.names.test.", i)), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}).Pack()
		if err != nil {
			return err
		}
		binary.BigEndian.PutUint16(b, uint16(i))
		_, _ = c.Write(b) // one that finds no room is lost
	}
	return nil
}
