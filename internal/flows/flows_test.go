// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// names knows two pods and a rule.
type names struct{ state *nodestate.State }

func (n names) State() *nodestate.State { return n.state }

func (names) Pod(a netip.Addr) (model.Name, bool) {
	switch a.String() {
	case "10.0.0.1":
		return model.Name{Namespace: "shop", Name: "web-5d8-abcde"}, true
	case "10.0.0.2":
		return model.Name{Namespace: "db", Name: "pg-0"}, true
	}
	return model.Name{}, false
}

func (names) Describe(pod model.Name, _ netip.Addr) (map[string]string, string) {
	if pod.Namespace == "shop" {
		return map[string]string{"pod-template-hash": "5d8"}, "n1"
	}
	return nil, ""
}

func newNames() names {
	s := nodestate.New()
	s.Rules.Set(7, nodestate.Rule{Kind: "NetworkPolicy", Name: "db/clients", Detail: "ingress[0]"})
	s.Rules.Set(8, nodestate.Rule{Kind: "Service", Name: "db/pg", Detail: "port pg"})
	s.Names.Texts[9] = "*.example.com"
	s.Frontends.Set(frontend, nodestate.Service{ID: frontend, Rule: 8})
	return names{s}
}

// kept is how many records the tests' collectors keep.
const kept = 32768

var (
	frontend = nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.9"), Port: 5432, Proto: model.ProtocolTCP}
	began    = time.Unix(1000, 0)
)

func record(reply bool, packets, bytes uint64) dataplane.FlowRecord {
	return dataplane.FlowRecord{
		Src: netip.MustParseAddr("10.0.0.1"), Sport: 40000, Dst: frontend.Addr, Dport: frontend.Port, Proto: model.ProtocolTCP,
		ToSrc: netip.MustParseAddr("10.0.0.1"), ToSport: 40000, ToDst: netip.MustParseAddr("10.0.0.2"), ToDport: 5432,
		Reply: reply, Packets: packets, Bytes: bytes, TCPFlags: 18, Handshake: 1500 * time.Microsecond, Started: began, Until: began.Add(time.Second), Service: frontend, Path: dataplane.PathLocal,
		Egress: dataplane.EventEnd{Local: true}, Ingress: dataplane.EventEnd{Local: true, Rule: 7, Staged: true, StagedDenied: true, StagedRule: 7},
	}
}

func all(c *Collector, f Filter) (out []*Flow) {
	c.Each(f, func(r *Flow) bool { out = append(out, r); return true })
	return out
}

// A record has the domain name by which a rule allows, also where answers are reported first.
func TestRecordsHaveDomains(t *testing.T) {
	t.Parallel()
	c := New("n1", time.Minute, kept, newNames())
	to := func(reply bool) dataplane.FlowRecord {
		r := record(reply, 1, 60)
		r.Service, r.Dst, r.Dport = nodestate.Frontend{}, r.ToDst, r.ToDport
		if r.Egress.Rule, r.Ingress = 7, (dataplane.EventEnd{}); !reply {
			r.Name, r.AskedName = 9, "a.example.com"
		}
		return r
	}
	c.Add(to(true))
	c.Add(to(false))
	c.Flush()
	got := all(c, Filter{})
	if len(got) != 1 || got[0].Egress == nil || got[0].Egress.Domain != "*.example.com" || got[0].Egress.Name != "a.example.com" || !strings.Contains(got[0].String(), " for *.example.com asked as a.example.com") {
		t.Errorf("%+v", got)
	}
}

// Connections that policy allowed become one record where they differ in their source ports alone,
// and say how many they were; what was denied, and what is another connection, stays apart.
func TestAggregation(t *testing.T) {
	t.Parallel()
	collected := func(by Aggregation) *Collector {
		c := New("n1", time.Minute, kept, newNames())
		c.Aggregation = func() Aggregation { return by }
		for i := range 5 {
			r := record(false, 10, 1000)
			r.Sport, r.Started, r.Until = uint16(40000+i), began.Add(time.Duration(5-i)*time.Second), began.Add(time.Duration(10+i)*time.Second)
			r.RetransmittedKnown, r.Retransmitted = true, 2
			if i < 3 {
				r.End = dataplane.FlowClosed
			}
			c.Add(r)
		}
		other := record(false, 1, 60)
		other.Ingress.Rule = 0 // another decision
		other.Sport = 50000
		c.Add(other)
		for port := range uint16(2) {
			c.AddEvent(events.Event{Time: began, Verdict: Denied, Protocol: "tcp", Source: events.Peer{Address: other.Src, Port: 60000 + port}, Destination: events.Peer{Address: other.ToDst, Port: 5432}})
		}
		c.Flush()
		return c
	}
	if got := all(collected(AggregateNothing), Filter{}); len(got) != 7 {
		t.Errorf("without aggregation: %d records, want 7", len(got))
	}
	got := all(collected(AggregateSourcePorts), Filter{})
	if len(got) != 3 {
		t.Fatalf("%d records, want 3: %v", len(got), got)
	}
	for _, f := range got {
		switch {
		case f.Verdict == Denied:
			if f.Records != 0 || f.Sent.Packets != 2 || f.Source.Port == 0 {
				t.Errorf("denied: %+v", f)
			}
		case f.Ingress.Rule == nil:
			if f.Records != 1 || f.Connections != 0 || f.Sent.Packets != 1 {
				t.Errorf("another decision: %+v", f)
			}
		default:
			if f.Records != 5 || f.Connections != 3 || f.Sent != (Counters{50, 5000}) || *f.Retransmitted != (Retransmitted{Sent: 10}) || f.Source.Port != 0 || f.TCPFlags != "" || f.Ended != "" ||
				!f.Start.Equal(began.Add(time.Second)) || !f.End.Equal(began.Add(14*time.Second)) || f.Handshake != 1500 {
				t.Errorf("sum: %+v", f)
			}
		}
	}
}

// A handshake is told once of each connection, by its first record of the client's direction.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	c := New("n1", time.Minute, kept, newNames())
	told := map[dataplane.FlowPath][]time.Duration{}
	c.OnHandshake = func(path dataplane.FlowPath, took time.Duration) { told[path] = append(told[path], took) }
	for _, change := range []func(*dataplane.FlowRecord){
		func(r *dataplane.FlowRecord) { r.First = true }, func(r *dataplane.FlowRecord) { r.First, r.Reply = true, true }, func(*dataplane.FlowRecord) {},
		func(r *dataplane.FlowRecord) { r.First, r.Handshake = true, 0 }, func(r *dataplane.FlowRecord) { r.First, r.Proto = true, model.ProtocolUDP },
	} {
		r := record(false, 1, 60)
		change(&r)
		c.Add(r)
	}
	if want := map[dataplane.FlowPath][]time.Duration{dataplane.PathLocal: {1500 * time.Microsecond}}; !maps.EqualFunc(told, want, slices.Equal) {
		t.Errorf("told: %v", told)
	}
}

// Retransmissions of each direction are those of its records together. Of other protocols, and of
// data planes that do not count them, there are none to be known.
func TestRetransmissions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*dataplane.FlowRecord)
		want   *Retransmitted
	}{
		"TCP": {func(*dataplane.FlowRecord) {}, &Retransmitted{Sent: 4, Received: 5}}, "none": {func(r *dataplane.FlowRecord) { r.Retransmitted = 0 }, &Retransmitted{}},
		"UDP": {func(r *dataplane.FlowRecord) { r.Proto = model.ProtocolUDP }, nil}, "not counted": {func(r *dataplane.FlowRecord) { r.RetransmittedKnown = false }, nil},
	} {
		col := New("n1", time.Minute, kept, newNames())
		for i, reply := range []bool{false, true, false} {
			r := record(reply, 9, 900)
			r.Retransmitted, r.RetransmittedKnown = []uint64{1, 5, 3}[i], true
			c.change(&r)
			col.Add(r)
		}
		col.Flush()
		if got := all(col, Filter{}); len(got) != 1 || !reflect.DeepEqual(got[0].Retransmitted, c.want) {
			t.Errorf("%s: %+v", name, got[0].Retransmitted)
		}
	}
}

// Both directions of a connection, and what comes in several pieces, are one record of an interval.
func TestOneRecordAConnectionAndInterval(t *testing.T) {
	t.Parallel()
	c := New("n1", time.Minute, kept, newNames())
	c.Add(record(false, 3, 300))
	c.Add(record(true, 2, 2000))
	last := record(false, 1, 40)
	last.End, last.Until, last.TCPFlags = dataplane.FlowClosed, began.Add(9*time.Second), 17
	c.Add(last)
	if got := all(c, Filter{}); len(got) != 0 {
		t.Fatalf("before the interval is over: %+v", got)
	}
	c.Flush()
	got := all(c, Filter{})
	if len(got) != 1 {
		t.Fatalf("%d records", len(got))
	}
	f := got[0]
	if f.Sent != (Counters{4, 340}) || f.Received != (Counters{2, 2000}) || f.Ended != "closed" || f.TCPFlags != "SYN ACK FIN" || f.Handshake != 1500 || !f.Start.Equal(began) || !f.End.Equal(last.Until) {
		t.Errorf("counted: %+v", f)
	}
	if f.Source.Workload != "Deployment web" || f.Source.Node != "n1" || f.Destination.String() != "db/pg-0" || f.Service != "db/pg port pg" || f.Asked != "10.96.0.9:5432" {
		t.Errorf("named: %+v", f)
	}
	if f.Rule == nil || f.Rule.Name != "db/clients" || f.Ingress.Staged == nil || f.Ingress.Staged.Verdict != Denied {
		t.Errorf("decided: %+v", f)
	}
	c.Add(record(false, 5, 500))
	c.Flush()
	if got := all(c, Filter{}); len(got) != 2 || got[1].Sent.Packets != 5 {
		t.Errorf("the next interval: %+v", got)
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	c := New("n1", time.Minute, kept, newNames())
	c.Add(record(false, 1, 40))
	denied := events.Event{Time: began.Add(time.Hour), Verdict: "denied", Reason: "POLICY_INGRESS", Protocol: "tcp", Source: events.Peer{Address: netip.MustParseAddr("192.0.2.1"), Port: 1},
		Destination: events.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 5432}, Ingress: &events.End{Rule: &events.Rule{Kind: "default-deny", Name: "db/clients"}}}
	c.AddEvent(denied)
	denied.Source.Port = 2 // another try
	c.AddEvent(denied)
	c.AddEvent(events.Event{Time: began, Verdict: "allowed"}) // nothing was dropped
	c.Flush()
	for _, x := range []struct {
		name string
		f    Filter
		want []string // verdicts
	}{
		{"all", Filter{}, []string{Allowed, Denied}},
		{"denied", Filter{Denied: true}, []string{Denied}},
		{"since", Filter{Since: began.Add(time.Minute)}, []string{Denied}},
		{"from a namespace", Filter{From: "shop"}, []string{Allowed}},
		{"from a pod", Filter{From: "shop/web-5d8-abcde"}, []string{Allowed}},
		{"from a workload", Filter{From: "shop/web"}, []string{Allowed}},
		{"from another", Filter{From: "shop/we"}, nil},
		{"from a network", Filter{From: "192.0.2.0/24"}, []string{Denied}},
		{"to an address", Filter{To: "10.0.0.2"}, []string{Allowed, Denied}},
		{"to a namespace", Filter{To: "shop"}, nil},
		{"a policy", Filter{Policy: "clients"}, []string{Allowed, Denied}},
		{"another policy", Filter{Policy: "lients"}, nil},
	} {
		parsed, err := ParseQuery(x.f.Query())
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		got := map[string]int{}
		for _, r := range all(c, parsed) {
			got[r.Verdict]++
		}
		if len(got) != len(x.want) {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
		for _, v := range x.want {
			if got[v] != 1 {
				t.Errorf("%s: %v, want %v", x.name, got, x.want)
			}
		}
	}
	for _, r := range all(c, Filter{Denied: true}) {
		if r.Sent.Packets != 2 || r.Rule.Name != "db/clients" {
			t.Errorf("two tries: %+v", r)
		}
	}
	for _, bad := range []string{"a/b/c"} {
		if err := (Filter{From: bad}).Check(); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	q := Filter{}.Query()
	q.Set("since", "yesterday")
	if _, err := ParseQuery(q); err == nil {
		t.Error("a time that is none is taken")
	}
}

// What is not kept is counted, by why; without an interval nothing is kept.
func TestWhatIsNotKept(t *testing.T) {
	t.Parallel()
	c := New("n1", time.Minute, kept, newNames())
	r := record(false, 1, 40)
	for i := range openMost + 3 {
		r.Sport, r.Src = uint16(i), netip.AddrFrom4([4]byte{172, 16, byte(i >> 16), 1})
		c.Add(r)
	}
	c.Flush()
	s := c.Status()
	if s.Kept != kept || s.Lost["interval"] != 3 || s.Lost["old"] != openMost-kept || !s.Oldest.Equal(r.Until) {
		t.Errorf("%+v", s)
	}
	off := New("n1", 0, kept, newNames())
	off.AddEvent(events.Event{Verdict: "denied"})
	off.Flush()
	if s := off.Status(); s.Kept != 0 {
		t.Errorf("%+v", s)
	}
}

// Who follows gets each record once, and learns how many took the place of ones that it did not
// read in time.
func TestFrom(t *testing.T) {
	t.Parallel()
	c := New("n1", time.Minute, 4, newNames())
	add := func(ports ...uint16) {
		for _, p := range ports {
			r := record(false, 1, 40)
			r.Sport = p
			c.Add(r)
			c.Flush()
		}
	}
	read := func(from uint64) (ports []uint16, first uint64) {
		records, first, _ := c.From(from)
		for _, f := range records {
			ports = append(ports, f.Source.Port)
		}
		return ports, first
	}
	for _, x := range []struct {
		add   []uint16
		from  uint64
		ports []uint16
		first uint64
	}{
		{nil, 0, nil, 0},
		{[]uint16{1, 2, 3}, 0, []uint16{1, 2, 3}, 0},
		{nil, 3, nil, 3},
		{[]uint16{4, 5}, 3, []uint16{4, 5}, 3},
		{[]uint16{6, 7, 8, 9, 10}, 5, []uint16{7, 8, 9, 10}, 6},
		{nil, 0, []uint16{7, 8, 9, 10}, 6},
		{nil, 99, nil, 10},
	} {
		add(x.add...)
		if ports, first := read(x.from); !slices.Equal(ports, x.ports) || first != x.first {
			t.Errorf("from %d: %v from %d on, want %v from %d on", x.from, ports, first, x.ports, x.first)
		}
	}
	_, _, flushed := c.From(10)
	add(11)
	select {
	case <-flushed:
	default:
		t.Error("nobody says that there are more")
	}
}

func TestWorkloadOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pod    string
		labels map[string]string
		want   string
	}{
		{"web-5d8-abcde", map[string]string{"pod-template-hash": "5d8"}, "Deployment web"},
		{"web-5d8-abcde", map[string]string{"pod-template-hash": "other"}, ""},
		{"pg-0", map[string]string{"statefulset.kubernetes.io/pod-name": "pg-0", "controller-revision-hash": "x"}, "StatefulSet pg"},
		{"agent-x2x4z", map[string]string{"controller-revision-hash": "x"}, "DaemonSet agent"},
		{"once-zz", map[string]string{"batch.kubernetes.io/job-name": "once"}, "Job once"},
		{"alone", nil, ""},
		{"", map[string]string{"controller-revision-hash": "x"}, ""},
	} {
		if got := WorkloadOf(c.pod, c.labels); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.pod, c.labels, got, c.want)
		}
	}
}

func TestICMP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sport, dport uint16
		want         string
	}{{700, 708, "8/0"}, {65535, 7, "8/0"}, {3<<8 | 1, 3<<8 | 1 + 0x4000, "3/1"}} {
		if got := icmpOf(c.sport, c.dport); got != c.want {
			t.Errorf("%d, %d: %s, want %s", c.sport, c.dport, got, c.want)
		}
	}
}
