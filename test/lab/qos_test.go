// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// limitsOfPods: a pod with all kinds of limits on each worker, whose data planes differ: no more
// connections than it may have, no more bandwidth, a DSCP outside of the cluster alone, and no more
// packets as soon as an annotation says so.
func (b *base) limitsOfPods(t *testing.T) {
	b.client(1).begin(t, "server", "--until-stdin-ends", fmt.Sprintf("--who=%d", whoPort))
	b.must(t, "client1", "nft", `add table inet qos; add chain inet qos in { type filter hook input priority 0; }
add rule inet qos in tcp dport `+fmt.Sprint(whoPort)+` ip dscp ef counter
add rule inet qos in tcp dport `+fmt.Sprint(whoPort)+` ip dscp != ef counter`)
	t.Cleanup(func() { b.must(t, "client1", "nft", "delete table inet qos") })
	for node, other := range map[string]*place{"worker1": b.srv2, "worker2": b.srv1} {
		spec := b.server("limited-"+node, node, nil)
		for name, value := range map[string]string{"ingressMaxConnections": "2", "egressBandwidth": "8M", "dscp": "EF"} {
			spec.Annotations["qos.projectcalico.org/"+name] = value
		}
		p := b.start(t, spec)[0]

		first, second := b.cli1.begin(t, "stream", at(p.addr, echoPort)), b.cli2.begin(t, "stream", at(p.addr, echoPort))
		allRefused(t, b.cli1.to(at(p.addr, whoPort)), b.cli2.to(at(p.addr, whoPort)))
		time.Sleep(time.Second) // for some blocks
		unbroken(t, first)
		b.cli2.soon(t, at(p.addr, whoPort), true)
		unbroken(t, second)

		const blocks, rate = 1024, 8e6 // of 1 KiB; bits a second
		began := time.Now()
		p.burst(t, at(other.addr, echoPort), blocks)
		if took, least := time.Since(began).Seconds(), 0.9*blocks*1024*8/rate; took < least {
			t.Errorf("%v sent %d KiB in %.2f s, which take %.2f s at its rate", p, blocks, took, least)
		}

		marked, rest := b.markedPackets(t)
		p.reaches(t, at(client1Addr, whoPort), "", nodes[node])
		if now, others := b.markedPackets(t); now-marked < 15 || others != rest {
			t.Errorf("%v reached client1 by %d packets with its DSCP and %d without", p, now-marked, others-rest)
		}

		before := b.drops(t, node, "PACKET_RATE", "")
		b.mustKubectl(t, "", "annotate", "pod", "-n", b.ns, p.pod, "qos.projectcalico.org/ingressPacketRate=1")
		const packets = 60
		eventually(t, 0, "packets beyond the rate are dropped", func() error {
			out, _ := b.cli1.do("ping", "-q", "-c", fmt.Sprint(packets), "-i", "0.01", "-W", "1", p.addr) // fails where none comes back
			m := regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`).FindStringSubmatch(out)
			if m == nil {
				return fmt.Errorf("ping said %q", out)
			}
			if sent, _ := strconv.Atoi(m[1]); sent != packets || m[2] == m[1] {
				return fmt.Errorf("%s of %s packets came back", m[2], m[1])
			}
			return nil
		})
		if after := b.drops(t, node, "PACKET_RATE", ""); after <= before {
			t.Errorf("%s counts %v packets dropped by a rate, %v before", node, after, before)
		}
	}
	marked, _ := b.markedPackets(t)
	b.cli1.reaches(t, at(client1Addr, whoPort), "", "")
	if now, _ := b.markedPackets(t); now != marked {
		t.Errorf("%d packets of a pod without the annotation have the DSCP", now-marked)
	}
}

// markedPackets counts the packets that came to client1 with the DSCP EF, and those with another.
func (l *lab) markedPackets(t *testing.T) (marked, rest int) {
	t.Helper()
	out := l.must(t, "client1", "nft", "list", "table", "inet", "qos")
	counts := regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(out, -1)
	if len(counts) != 2 || strings.Index(out, "!= ef") < strings.Index(out, "dscp ef") {
		t.Fatalf("client1's counters are %s", out)
	}
	marked, _ = strconv.Atoi(counts[0][1])
	rest, _ = strconv.Atoi(counts[1][1])
	return marked, rest
}
