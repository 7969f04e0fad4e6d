// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// TestSwitchSamePorts: connections that share their source port, one to a Service and one straight
// to its backend, so that one of both gets another port where the backend sees it, go on while
// nodes change their data planes. None is reset, and none gets what is another's, whichever of the
// two began first, and in which data plane. WEIR_SWITCH is how many pairs there are of each kind;
// with it, pods of both families are isolated, and are not. Each part takes a minute and more.
func TestSwitchSamePorts(t *testing.T) {
	t.Parallel()
	parts := []struct {
		name     string
		fam      family
		isolated bool
	}{{"IPv4/open", ipv4, false}, {"IPv6/isolated", ipv6, true}, {"IPv4/isolated", ipv4, true}, {"IPv6/open", ipv6, false}}
	if !strictSwitch() {
		parts = parts[:2]
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { testSwitchSamePorts(t, p.fam, p.isolated) })
	}
}

// pair is what is asked from one source port.
type pair struct {
	from            *worker
	src             string
	service, direct string
}

func testSwitchSamePorts(t *testing.T, fam family, isolated bool) {
	f := newFixture(t, fam)
	pairs, every, turns := 4, 50*time.Millisecond, 4
	if strictSwitch() {
		pairs, every, turns = switchSize(t)
	}
	f.roomFor(pairs)
	f.switchServices(isolated)
	all := []pair{
		{f.a.worker, "10.244.1.2", "10.96.0.4:80", "172.30.0.8:8081"}, // a process of the pod's own node
		{f.a.worker, "10.244.1.2", "10.96.0.1:80", f.b.at("8081")},
		{f.a.worker, "10.244.1.2", "10.96.0.2:80", f.c.at("8081")},
		{f.n1.worker, "172.30.0.8", "10.96.0.1:80", f.b.at("8081")},
		{f.n1.worker, "172.30.0.8", "10.96.0.2:80", f.c.at("8081")},
		{f.client.worker, "172.30.0.55", "172.30.0.8:30004", "172.30.0.8:8081"},
	}
	dropped := queueDrops(t)
	var streams []*running
	port := 33000
	begin := func(pairs int) {
		t.Helper()
		for _, p := range all {
			for _, to := range [][2]string{{p.service, p.direct}, {p.direct, p.service}} {
				for _, nw := range networks {
					for _, addr := range to {
						streams = append(streams, p.from.streamFrom(t, len(streams)+1, pairs, every, nw, addr, fmt.Sprintf("%s:%d", p.src, port)))
					}
				}
				port += pairs
			}
		}
	}
	none := 0
	begin(pairs - pairs/3)
	streams = allGoOn(t, streams, "before", &none)
	for i := range turns {
		step := []struct {
			n     *node
			plane string
		}{{f.n1, "nft"}, {f.n2, "nft"}, {f.n1, "ebpf"}, {f.n2, "ebpf"}, {f.n1, "nft"}, {f.n1, "ebpf"}}[i%6]
		if i == 2 { // nftables chooses the ports of some
			begin(pairs / 3)
		}
		when := step.n.goOver(t, step.plane)
		if streams = allGoOn(t, streams, when, &none); t.Failed() {
			t.FailNow()
		}
	}
	endStreams(t, streams, dropped)
}

// switchServices are what the streams of changes of the data plane ask, with policy that isolates
// every pod or without.
func (f *fixture) switchServices(isolated bool) {
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.cluster.Settings.HostNAT = true
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.service("own", "10.96.0.4", 30004)
	f.slices("own", 8081, []model.ServiceEndpoint{{Addrs: f.lan.pairOf(f.n1.addr)[:1], Node: "n1", Ready: true, Serving: true}})
	for _, s := range []string{"near", "far"} {
		f.linesAt(s)
	}
	for _, w := range []*worker{f.a.worker, f.b.worker, f.c.worker, f.n1.worker, f.client.worker} {
		w.lines(":8081")
	}
	if isolated {
		f.isolate()
		f.routed, f.cluster.Settings.DSR = true, true
	}
	f.apply()
}
