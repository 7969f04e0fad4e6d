// SPDX-License-Identifier: Apache-2.0

package result

import (
	"math"
	"slices"

	"github.com/weir-net/weir/internal/bench/probe"
)

// knb fills Data from the rows that knb has too.
func (f *File) knb() {
	d := &f.Data
	d.Idle, d.Pod2Pod, d.Pod2Svc = f.knbTest("idle"), nil, nil
	for _, path := range []struct {
		name string
		to   **Protocols
	}{{"pod2pod", &d.Pod2Pod}, {"pod2svc", &d.Pod2Svc}} {
		p := Protocols{TCP: f.knbTest(path.name + "/tcp"), UDP: f.knbTest(path.name + "/udp")}
		if p != (Protocols{}) {
			*path.to = &p
		}
	}
}

func (f *File) knbTest(id string) *KnbTest {
	i := f.index(id, 0)
	if i < 0 {
		return nil
	}
	row := &f.Rows[i]
	median := func(of func(*Round) float64) float64 {
		var all []float64
		for n := range row.Rounds {
			if r := &row.Rounds[n]; r.Error == "" && r.Elapsed > 0 {
				all = append(all, of(r))
			}
		}
		slices.Sort(all)
		if len(all) == 0 {
			return 0
		}
		return math.Round(100*medianOf(all)) / 100
	}
	if len(row.Values) == 0 {
		return nil
	}
	node := func(use func(*Round) probe.Use) KnbNode {
		share := func(of func(probe.Use) float64) float64 {
			return median(func(r *Round) float64 {
				u := use(r)
				return 100 * of(u) / max(u.Elapsed*float64(u.CPUs), 1e-9)
			})
		}
		n := KnbNode{RAM: median(func(r *Round) float64 { return use(r).MemUsed }), CPU: KnbCPU{
			User: share(func(u probe.Use) float64 { return u.User }), Nice: share(func(u probe.Use) float64 { return u.Nice }),
			System: share(func(u probe.Use) float64 { return u.System }), IOWait: share(func(u probe.Use) float64 { return u.IOWait }),
			Steal: share(func(u probe.Use) float64 { return u.Steal })}}
		n.CPU.Total = math.Round(100*(n.CPU.User+n.CPU.Nice+n.CPU.System+n.CPU.IOWait+n.CPU.Steal)) / 100
		return n
	}
	t := &KnbTest{Client: node(func(r *Round) probe.Use { return r.Client }), Server: node(func(r *Round) probe.Use { return r.Server })}
	if id != "idle" {
		t.Bandwidth = median(func(r *Round) float64 { return float64(r.Bytes) * 8 / r.Elapsed / 1e6 })
	}
	return t
}
