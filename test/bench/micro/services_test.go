// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// sizes are how many other Services there are, with a cluster IP, a node port of every third and
// two endpoints each.
var sizes = []int{10, 1000, 10000, 100000}

const sizeRounds = 5

// A variant is a state of the node and what it is called in the names of its rows.
type variant struct {
	label string
	state *nodestate.State
}

// A firstPath is a path of packets that each begin a flow.
type firstPath struct {
	name, program string
	ifindex       int
	packets       []string
}

// variants measures the first packets of flows in states that take turns, forwards in one round and
// backwards in the next. A row, named by path and variant, is the median of its rounds' medians;
// the medians are returned by their rows' names.
func variants(b *testing.B, f *fixture, paths []firstPath, all []variant, row func(path, label string) string) map[string]float64 {
	b.Helper()
	medians, p99s := map[string][]float64{}, map[string][]float64{}
	for range b.N {
		clear(medians)
		clear(p99s)
		for round := range sizeRounds {
			order := slices.Clone(all)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, v := range order {
				if err := f.Apply(v.state); err != nil {
					b.Fatal(err)
				}
				for _, p := range paths {
					if err := f.ResetFlows(); err != nil {
						b.Fatal(err)
					}
					frames := make([][]byte, len(p.packets))
					for i, t := range p.packets {
						frames[i] = marshal(t)
					}
					median, p99, err := many(f.Programs[p.program], frames, p.ifindex, 1, len(frames), actRedirect)
					if err != nil {
						b.Fatal(err)
					}
					at := row(p.name, v.label)
					medians[at], p99s[at] = append(medians[at], median-empty.cold), append(p99s[at], p99-empty.cold)
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	out := map[string]float64{}
	for _, p := range paths {
		for _, v := range all {
			at := row(p.name, v.label)
			out[at] = middle(medians[at])
			record(Row{Name: at, Program: p.program[len("weir_"):], Mode: "cold", NS: out[at], P99: middle(p99s[at]), EmptyNS: empty.cold, Packets: singles * sizeRounds})
		}
	}
	return out
}

func middle(sample []float64) float64 {
	sorted := slices.Sorted(slices.Values(sample))
	return sorted[len(sorted)/2]
}

// BenchmarkServices measures the first packet of a flow to one Service alongside many others.
func BenchmarkServices(b *testing.B) {
	f := node(b, 0)
	paths := []firstPath{
		{"pod to Service, remote backend", fromWorkload, f.links.podA, syns(singles, always(podA.String()), "10.96.0.11:80")},
		{"client to NodePort, local backend", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30604")},
		{"client to NodePort, handed on", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30605")},
	}
	var all []variant
	for _, n := range sizes {
		s := newState(f.links)
		withServices(s, n)
		all = append(all, variant{fmt.Sprint(n), s})
	}
	row := func(path, label string) string { return fmt.Sprintf("new flow, %s, beside %s Services", path, label) }
	medians := variants(b, f, paths, all, row)
	for _, p := range paths {
		b.ReportMetric(medians[row(p.name, all[len(all)-1].label)]/medians[row(p.name, all[0].label)], "largest/smallest:"+p.program)
	}
}

// withServices adds n Services that nobody asks.
func withServices(s *nodestate.State, n int) {
	for i := range n {
		id := nodestate.Frontend{Addr: netip.AddrFrom4([4]byte{10, byte(112 + i>>16), byte(i >> 8), byte(i)}), Port: 80, Proto: model.ProtocolTCP}
		s.Frontends.Set(id, nodestate.Service{ID: id})
		if i%3 == 0 && i/3 < 20000 {
			port := nodestate.Frontend{Addr: netip.IPv4Unspecified(), Port: uint16(10000 + i/3), Proto: model.ProtocolTCP}
			s.Frontends.Set(port, nodestate.Service{ID: id, External: true})
		}
		end := func(k int) nodestate.Backend {
			at := 2*i + k
			return nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, byte(200 + at>>16), byte(at >> 8), byte(at)}), Port: 80}
		}
		s.Backends.Set(id, []nodestate.Backend{end(0), end(1)})
	}
}

// BenchmarkBackends measures the first packet of a flow to a Service of one backend and of 5,000.
func BenchmarkBackends(b *testing.B) {
	f := node(b, 0)
	var all []variant
	for _, n := range []int{1, 5000} {
		s := newState(f.links)
		var near, far []nodestate.Backend
		for i := range n {
			near = append(near, nodestate.Backend{Addr: podB, Port: uint16(8080 + i), Local: true})
			far = append(far, nodestate.Backend{Addr: podRemote, Port: uint16(8080 + i)})
		}
		s.Backends.Set(localSvc, near)
		s.Backends.Set(remoteSvc, far)
		all = append(all, variant{fmt.Sprint(n), s})
	}
	paths := []firstPath{
		{"local backend", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30604")},
		{"handed on", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30605")},
	}
	variants(b, f, paths, all, func(path, label string) string {
		return fmt.Sprintf("new flow, client to NodePort, %s, one of %s backends", path, label)
	})
}
