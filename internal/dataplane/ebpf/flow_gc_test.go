// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// flowsOf makes n TCP flows; every second one was seen long ago.
func flowsOf(t testing.TB, m *ebpf.Map, n int, now uint32) {
	t.Helper()
	flowsAged(t, m, n, now, 2)
}

// flowsAged makes n TCP flows; of so many one was seen long ago, 0 = none.
func flowsAged(t testing.TB, m *ebpf.Map, n int, now uint32, one int) {
	t.Helper()
	const chunk = 8192
	keys, values := make([]abi.WeirFlowKey, 0, chunk), reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]())), 0, chunk)
	for i := range n {
		var k abi.WeirFlowKey
		v := abi.FlowValue[abi.Ip4]{Seen: now - 1, State: 1}
		k.Proto, k.Sport, k.Dport = 6, uint16(i), uint16(i>>16)
		if one > 0 && i%one == 0 {
			v.Seen = now - 100000
		}
		b, err := v.Marshal(m.ValueSize())
		nettest.Must(t, err)
		keys, values = append(keys, k), reflect.Append(values, reflect.ValueOf(b).Convert(values.Type().Elem()))
		if len(keys) == chunk || i == n-1 {
			if _, err := m.BatchUpdate(keys, values.Interface(), nil); err != nil {
				t.Fatal(err)
			}
			keys, values = keys[:0], values.Slice(0, 0)
		}
	}
}

func sweepOf(t testing.TB, size uint32) (*flowtable.TableGC, *flowtable.KernelClock) {
	t.Helper()
	o, err := offline.Load(offline.Options{Programs: []string{}, Sizes: map[string]uint32{"weir_flows": size}})
	nettest.Must(t, err)
	t.Cleanup(o.Close)
	s, err := flowtable.NewTableGC("weir_flows", o.Maps, unix.IPPROTO_ICMP)
	nettest.Must(t, err)
	t.Cleanup(s.Close)
	clock, err := flowtable.NewKernelClock()
	nettest.Must(t, err)
	t.Cleanup(clock.Close)
	for i := range s.Timeouts {
		s.Timeouts[i] = 1000
	}
	s.Now, err = clock.Now()
	nettest.Must(t, err)
	return s, clock
}

func gcRoundOf(t testing.TB, s *flowtable.TableGC) (steps int) {
	t.Helper()
	for over := false; !over; steps++ {
		var err error
		over, err = s.Step()
		nettest.Must(t, err)
	}
	return steps
}

func TestSweep(t *testing.T) {
	needRoot(t)
	s, clock := sweepOf(t, 200000)
	begin, before := time.Now(), s.Now
	time.Sleep(1100 * time.Millisecond)
	now, err := clock.Now()
	nettest.Must(t, err)
	// A unit is between 0.256 s (HZ=1000) and 2.56 s (HZ=100).
	passed := time.Since(begin).Seconds()
	if units := float64(now - before); units < passed/2.56-2 || units > passed/0.256+2 {
		t.Errorf("%.1f s are %.0f units of the clock", passed, units)
	}
	const n = 50000
	flowsOf(t, s.M, n, s.Now)
	gcRoundOf(t, s)
	if s.Entries != n/2 || s.LastRemoved != n/2 {
		t.Errorf("%d flows are left and %d were removed, want %d each", s.Entries, s.LastRemoved, n/2)
	}
	var k abi.WeirFlowKey
	v := make([]byte, s.M.ValueSize())
	for it := s.M.Iterate(); it.Next(&k, &v); {
		if k.Sport%2 == 0 {
			t.Fatalf("a flow that was expired is there: %+v", k)
		}
	}
	// One that a packet began anew between the look and the removal stays.
	var raw [16]byte
	k = abi.WeirFlowKey{Proto: 6, Sport: 1}
	raw[12] = 6
	binary.NativeEndian.PutUint16(raw[8:], 1)
	if s.Remove(raw[:]) {
		t.Error("a live flow counts as removed")
	}
	if err := s.M.Lookup(&k, &v); err != nil {
		t.Errorf("a live flow is lost: %v", err)
	}
	if n := gcRoundOf(t, s); n < 2 || s.Entries != 25000 || s.LastRemoved != 0 {
		t.Errorf("the second round counts %d and removes %d in %d steps", s.Entries, s.LastRemoved, n)
	}
	if err := s.M.Lookup(abi.WeirFlowKey{}, &v); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("looking for what is not there: %v", err)
	}
}

func TestPressureIsToldInTime(t *testing.T) {
	for _, test := range []struct {
		entries, capacity int
		high              bool
	}{{0, 100, false}, {90, 100, false}, {91, 100, true}, {100, 100, true}} {
		if p := (dataplane.Pressure{Entries: test.entries, Capacity: test.capacity}); p.High() != test.high {
			t.Errorf("%d of %d: %t", test.entries, test.capacity, p.High())
		}
	}
}

// BenchmarkSweep is one round through a million live flows. With the pauses of
// Driver.collectGarbage it takes at most 1/gcShare of a core, and so gcShare times as long.
func BenchmarkSweep(b *testing.B) {
	needRoot(b)
	s, _ := sweepOf(b, 1<<20)
	flowsOf(b, s.M, 1000000, s.Now)
	gcRoundOf(b, s) // removes half
	b.ReportMetric(float64(s.LastRemoved), "removed")
	steps := 0
	for b.Loop() {
		steps += gcRoundOf(b, s)
	}
	b.ReportMetric(float64(s.Entries), "flows")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(steps), "ns/step")
}

// usedCPU does not count what others do on a busy machine.
func usedCPU() time.Duration {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkSweepCPU lets the driver sweep as it does on a node, pauses included, for one round
// through the table of connections, and reports how much of a core that took: with a million live
// flows, and with a million of which half is to go. A round takes two and a half minutes on a
// machine that does nothing else.
func BenchmarkSweepCPU(b *testing.B) {
	needRoot(b)
	for name, old := range map[string]int{"live": 0, "half expired": 2} {
		b.Run(name, func(b *testing.B) {
			n := newBench(b)
			n.edit = func(o *Options) { o.Sizes["weir_flows"] = 1 << 20 }
			d := n.open(b)
			nettest.Must(b, d.Apply(b.Context(), sample(n), nodestate.All()))
			clock, err := flowtable.NewKernelClock()
			nettest.Must(b, err)
			defer clock.Close()
			now, err := clock.Now()
			nettest.Must(b, err)
			flowsAged(b, d.loaded.Maps["weir_flows"], 1000000, now, old)
			left := func() int {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.loaded.Swept["weir_flows"]
			}
			var used, took time.Duration
			for b.Loop() {
				ctx, stop := context.WithCancel(b.Context())
				before, began := usedCPU(), time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					d.collectGarbage(ctx)
				}()
				await.Within(b, time.Hour, "a round", func() error {
					if time.Sleep(time.Second); left() == 0 {
						return errors.New("is not over")
					}
					return nil
				})
				used, took = used+usedCPU()-before, took+time.Since(began)
				stop()
				<-done
			}
			b.ReportMetric(100*used.Seconds()/took.Seconds(), "%core")
			b.ReportMetric(used.Seconds(), "cpu-s/round")
			b.ReportMetric(float64(left()), "flows-left")
		})
	}
}
