// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"sync"
	"testing"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
)

// recordsEvery is the interval of flow records, seconds: the default of flowLogsFlushInterval.
const recordsEvery = 15

// turns is how often the programs with flow records and those without are run one after the other.
const turns = 10

// recording is a node whose programs account for flows, beside the shared one whose do not.
var recording = sync.OnceValues(func() (*fixture, error) {
	plain, err := shared()
	if err != nil {
		return nil, err
	}
	hz, err := kernel.HZ()
	if err != nil {
		return nil, err
	}
	o, err := offline.Load(offline.Options{HostDevice: plain.links.host, Sizes: map[string]uint32{"weir_flows": 512000, "weir_flows_new": 128000}, AccountInterval: uint32(recordsEvery * hz)})
	if err != nil {
		return nil, err
	}
	o.SetUplinks(map[int][6]byte{plain.links.uplink: uplinkMAC})
	return &fixture{Node: o, links: plain.links}, nil
})

// BenchmarkRecords compares programs with flow records and without, in turns: on a machine that
// does something else, too, both have the same part of that.
func BenchmarkRecords(b *testing.B) {
	off := node(b, 0)
	on, err := recording()
	if err != nil {
		b.Fatal(err)
	}
	const there, back = "tcp 10.244.1.2:1000 > 10.96.0.11:80", "tcp 10.244.2.2:8080 > 10.244.1.2:1000"
	// Data whose end has sequence number 0, which stands for none that came: so the same packet is
	// in order each time.
	const data = " . ttl=255 seq=4294967196 fill=100"
	for _, c := range []struct {
		name, program string
		link          int
		packets       []string
		repeat        int
	}{
		{"established, pod to Service", fromWorkload, off.links.podA, []string{there + " . ttl=255"}, hot},
		{"established, answer to it", fromUplink, off.links.uplink, []string{back + " . ttl=255"}, hot},
		{"established with data, pod to Service", fromWorkload, off.links.podA, []string{there + data}, hot},
		{"established with data, answer to it", fromUplink, off.links.uplink, []string{back + data}, hot},
		{"new flow, pod to remote pod", fromWorkload, off.links.podA, syns(singles, always(podA.String()), "10.244.2.2:8080"), 1},
	} {
		frames := make([][]byte, len(c.packets))
		for i, text := range c.packets {
			frames[i] = marshal(text)
		}
		nothing, mode := empty.hot, "hot"
		if c.repeat == 1 {
			nothing, mode = empty.cold, "cold"
		}
		sides := [2]*fixture{off, on}
		var medians [2][]float64
		for turn := range turns {
			for i := range sides {
				at := (i + turn) % 2
				f := sides[at]
				if err := f.Apply(newState(f.links)); err != nil {
					b.Fatal(err)
				}
				if err := f.ResetFlows(); err != nil {
					b.Fatal(err)
				}
				calls := len(frames)
				if c.repeat > 1 {
					f.step(b, fromWorkload, f.links.podA, there+" S ttl=64", actRedirect)
					f.step(b, fromUplink, f.links.uplink, back+" S. ttl=64", actRedirect)
					f.step(b, fromWorkload, f.links.podA, there+" . ttl=64", actRedirect)
					f.mirrored(b, there)
					f.mirrored(b, back)
					calls = batches
				}
				median, _, err := many(f.Programs[c.program], frames, c.link, c.repeat, calls, actRedirect)
				if err != nil {
					b.Fatal(err)
				}
				medians[at] = append(medians[at], median-nothing)
			}
		}
		for at, side := range []string{"off", "on"} {
			s := bench.Summarize(medians[at])
			record(Row{Name: c.name + ", flow records " + side, Program: c.program[len("weir_"):], Mode: mode, NS: s.P50, P99: s.P99, EmptyNS: nothing, Packets: turns * len(frames) * c.repeat})
			nettest.Figure(b, c.name+", ns a packet, flow records "+side, s.P50)
		}
	}
	b.ReportMetric(0, "ns/op")
}
