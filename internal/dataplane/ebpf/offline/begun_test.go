// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// nobody knows no names.
type nobody struct{ state *nodestate.State }

func (n nobody) State() *nodestate.State { return n.state }

func (nobody) Pod(netip.Addr) (model.Name, bool) { return model.Name{}, false }

func (nobody) Describe(model.Name, netip.Addr) (map[string]string, string) { return nil, "" }

// beginning are connections that two processors begin at once, 50,000 in each second at most, of
// segments with the given flags. Each has another source port or another server.
func beginning(t *testing.T, p *ebpf.Program, count int, segments ...byte) (took time.Duration) {
	t.Helper()
	const each = 20 * time.Millisecond // between two looks at the rate
	began := time.Now()
	var made atomic.Int64
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for n := made.Add(1) - 1; n < int64(count); n = made.Add(1) - 1 {
				if n%500 == 0 {
					if ahead := time.Duration(n)*time.Second/newFlows - time.Since(began); ahead > each {
						time.Sleep(ahead)
					}
				}
				for _, flags := range segments {
					b := segment(flags, false)
					binary.BigEndian.PutUint16(b[34:], uint16(1024+n%50_000))
					b[33] = firstServer + byte(n/50_000)
					send(t, p, b, 1)
				}
			}
		})
	}
	both.Wait()
	return time.Since(began)
}

const (
	newFlows    = 50_000 // that begin on a node in a second
	firstServer = 3      // the last byte of its address
)

// What begins at 50,000 connections a second is in a record or is counted as lost, each by itself:
// with a ring of a node's size, and with one that is far too small. Where the table of half-open
// flows is a node's, and so fills up, the kernel may evict an entry that was not reported yet: that
// is counted, too.
func TestNoFlowIsLostUnseen(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	count := 2 * newFlows
	if nettest.Measuring() {
		count = 10 * newFlows
	}
	roomy := uint32(4 * count)
	for name, size := range map[string]struct{ ring, half uint32 }{"as on a node": {16 << 20, 128_000}, "with room": {16 << 20, roomy}, "with a small ring": {1 << 16, roomy}} {
		o, err := Load(Options{Programs: []string{"weir_from_workload"}, AccountInterval: 1 << 30, Sizes: map[string]uint32{"weir_records": size.ring, "weir_flows_new": size.half}})
		nettest.Must(t, err)
		state := dryRunState()
		for i := range (count + 49_999) / 50_000 {
			state.Addrs[netip.AddrFrom4([4]byte{10, 244, 1, firstServer + byte(i)})] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 1}
		}
		nettest.Must(t, o.Apply(state))
		records, err := eventring.NewRecords(o.Maps["weir_records"])
		nettest.Must(t, err)
		c := flows.New("n1", 2*time.Second, count, nobody{state})
		stop, read := make(chan struct{}), make(chan struct{})
		go func() { // as flowlog reads, which has two seconds for an interval here
			defer close(read)
			tick, flush := time.NewTicker(100*time.Millisecond), time.NewTicker(c.Interval())
			defer tick.Stop()
			defer flush.Stop()
			for {
				select {
				case <-stop:
					return
				case <-flush.C:
					c.Flush()
				case <-tick.C:
					if err := records.Each(func(r dataplane.FlowRecord) { c.Add(r) }); err != nil {
						t.Error(err)
					}
				}
			}
		}()
		took := beginning(t, o.Programs["weir_from_workload"], count, syn, rst)
		close(stop)
		<-read
		nettest.Must(t, records.Each(c.Add))
		c.Flush()
		begun, err := counters.Read(o.Maps["weir_counts"], abi.CountFlowsBegun)
		nettest.Must(t, err)
		full, err := counters.Read(o.Maps["weir_counts"], abi.CountRecordsLost)
		nettest.Must(t, err)
		s := c.Status()
		evicted, _ := evictedOf(t, o, false)
		lost := full + s.Lost["interval"] + s.Lost["old"] + evicted
		unseen := int64(count) - int64(s.Kept) - int64(lost)
		if begun != uint64(count) || unseen != 0 || size.half == roomy && evicted > 0 {
			t.Errorf("%s: of %d connections %d began, %d are kept and %d counted as lost (ring %d, evicted %d, %v)", name, count, begun, s.Kept, lost, full, evicted, s.Lost)
		}
		if name == "with a small ring" && full == 0 {
			t.Error("a small ring has room for all")
		}
		var packets uint64
		c.Each(flows.Filter{}, func(f *flows.Flow) bool { packets += f.Sent.Packets; return true })
		if packets != 2*uint64(s.Kept) {
			t.Errorf("%s: %d records have %d packets", name, s.Kept, packets)
		}
		if name == "as on a node" {
			nettest.Figure(t, "new flows, a second", float64(count)/took.Seconds())
			nettest.Figure(t, "new flows, made", float64(count))
			nettest.Figure(t, "new flows, kept", float64(s.Kept))
			nettest.Figure(t, "new flows, counted as lost", float64(lost))
			nettest.Figure(t, "new flows, lost unseen", float64(unseen))
		}
		records.Close()
		o.Close()
	}
}

// evictedOf sweeps the tables of flows and returns how many flows were evicted and how many are
// there. With late the sweep finds all of them expired.
func evictedOf(t *testing.T, o *Node, late bool) (evicted uint64, live int) {
	t.Helper()
	sweeps, err := flowtable.NewTableGCs(o.Maps, 1)
	nettest.Must(t, err)
	e, err := flowtable.NewEvicted(o.Maps["weir_counts"], sweeps)
	nettest.Must(t, err)
	defer e.Close()
	nettest.Must(t, e.Begin())
	for _, s := range sweeps {
		defer s.Close()
		if late {
			clock, err := flowtable.NewKernelClock()
			nettest.Must(t, err)
			defer clock.Close()
			s.Now, err = clock.Now()
			nettest.Must(t, err)
			s.Now += 1 << 20
		}
		for over := false; !over; {
			over, err = s.Step()
			nettest.Must(t, err)
		}
		if s.Name == "weir_flows_new" {
			live = s.Entries / 2 // an entry for each direction, where none was evicted by itself
		}
	}
	nettest.Must(t, e.End())
	evicted, known := e.Count()
	if !known {
		t.Error("it is not known how many flows were evicted")
	}
	return evicted, live
}

// Flows that the kernel evicts from a table that is too small are counted, those that end or stay
// are not.
func TestEvictedFlowsAreCounted(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	const table, count = 8192, 20_000
	o, err := Load(Options{Programs: []string{"weir_from_workload"}, AccountInterval: 1 << 30, Sizes: map[string]uint32{"weir_flows_new": table}})
	nettest.Must(t, err)
	defer o.Close()
	nettest.Must(t, o.Apply(dryRunState()))
	program := o.Programs["weir_from_workload"]
	beginning(t, program, table/8, syn)
	if evicted, live := evictedOf(t, o, false); evicted != 0 || live != table/8 {
		t.Errorf("%d flows have room, and %d of them were evicted, %d are there", table/8, evicted, live)
	}
	beginning(t, program, table/8, rst)
	if evicted, _ := evictedOf(t, o, false); evicted != 0 {
		t.Errorf("%d flows were evicted where all had ended", evicted)
	}
	beginning(t, program, count, syn)
	evicted, _ := evictedOf(t, o, false)
	// Of the entries that are left some are of answers whose flow is gone, and the reverse.
	if least := uint64(count - table); evicted < least || evicted > count {
		t.Errorf("of %d flows in a table of %d entries %d were evicted", count, table, evicted)
	}
	again, _ := evictedOf(t, o, false)
	if again != evicted {
		t.Errorf("%d flows were evicted, and by another sweep %d", evicted, again)
	}
	// What the sweep removes is not evicted.
	for range 2 {
		if after, live := evictedOf(t, o, true); after != evicted || live != 0 {
			t.Errorf("%d flows were evicted, and after the rest had expired %d; %d are left", evicted, after, live)
		}
	}
}
