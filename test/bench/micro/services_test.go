package micro

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// sizes are how many other Services there are, with a cluster IP, a node port of every third and two endpoints each.
var sizes = []int{10, 1000, 10000, 100000}

const sizeRounds = 5

// BenchmarkServices measures the first packet of a flow to one Service beside many others. Sizes come in turns, forwards
// in one round and backwards in the next; a row is the median of its rounds' medians.
func BenchmarkServices(b *testing.B) {
	f := node(b, 0)
	paths := []struct {
		name, program string
		ifindex       int
		packets       []string
	}{
		{"pod to Service, remote backend", fromWorkload, f.links.podA, syns(singles, always(podA.String()), "10.96.0.11:80")},
		{"client to NodePort, local backend", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30604")},
		{"client to NodePort, handed on", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30605")},
	}
	states := map[int]*nodestate.State{}
	for _, n := range sizes {
		states[n] = newState(f.links)
		withServices(states[n], n)
	}
	medians := map[string][]float64{}
	p99s := map[string][]float64{}
	name := func(path string, n int) string { return fmt.Sprintf("new flow, %s, beside %d Services", path, n) }
	for range b.N {
		clear(medians)
		clear(p99s)
		for round := range sizeRounds {
			order := slices.Clone(sizes)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, n := range order {
				if err := f.Apply(states[n]); err != nil {
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
					row := name(p.name, n)
					medians[row], p99s[row] = append(medians[row], median-empty.cold), append(p99s[row], p99-empty.cold)
				}
			}
		}
	}
	for _, p := range paths {
		for _, n := range sizes {
			row := name(p.name, n)
			record(Row{Name: row, Program: p.program[len("weir_"):], Mode: "cold", NS: middle(medians[row]), P99: middle(p99s[row]),
				EmptyNS: empty.cold, Packets: singles * sizeRounds})
		}
		b.ReportMetric(middle(medians[name(p.name, sizes[len(sizes)-1])])/middle(medians[name(p.name, sizes[0])]), "largest/smallest:"+p.program)
	}
	b.ReportMetric(0, "ns/op")
}

func middle(sample []float64) float64 {
	sorted := slices.Sorted(slices.Values(sample))
	return sorted[len(sorted)/2]
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

// BenchmarkBackends measures the first packet of a flow to a Service of one backend and of 5,000, in turns.
func BenchmarkBackends(b *testing.B) {
	f := node(b, 0)
	states := map[int]*nodestate.State{}
	for _, n := range []int{1, 5000} {
		s := newState(f.links)
		var near, far []nodestate.Backend
		for i := range n {
			near = append(near, nodestate.Backend{Addr: podB, Port: uint16(8080 + i), Local: true})
			far = append(far, nodestate.Backend{Addr: podRemote, Port: uint16(8080 + i)})
		}
		s.Backends.Set(localSvc, near)
		s.Backends.Set(remoteSvc, far)
		states[n] = s
	}
	local := syns(singles, always(client), "10.0.0.1:30604")
	remote := syns(singles, always(client), "10.0.0.1:30605")
	medians, p99s := map[string][]float64{}, map[string][]float64{}
	row := func(what string, n int) string {
		return fmt.Sprintf("new flow, client to NodePort, %s, one of %d backends", what, n)
	}
	for range b.N {
		clear(medians)
		clear(p99s)
		for range sizeRounds {
			for _, n := range []int{1, 5000} {
				if err := f.Apply(states[n]); err != nil {
					b.Fatal(err)
				}
				for what, texts := range map[string][]string{"local backend": local, "handed on": remote} {
					if err := f.ResetFlows(); err != nil {
						b.Fatal(err)
					}
					frames := make([][]byte, len(texts))
					for i, t := range texts {
						frames[i] = marshal(t)
					}
					median, p99, err := many(f.Programs[fromUplink], frames, f.links.uplink, 1, len(frames), actRedirect)
					if err != nil {
						b.Fatal(err)
					}
					at := row(what, n)
					medians[at], p99s[at] = append(medians[at], median-empty.cold), append(p99s[at], p99-empty.cold)
				}
			}
		}
	}
	for _, what := range []string{"local backend", "handed on"} {
		for _, n := range []int{1, 5000} {
			record(Row{Name: row(what, n), Program: fromUplink[len("weir_"):], Mode: "cold", NS: middle(medians[row(what, n)]),
				P99: middle(p99s[row(what, n)]), EmptyNS: empty.cold, Packets: singles * sizeRounds})
		}
	}
	b.ReportMetric(0, "ns/op")
}
