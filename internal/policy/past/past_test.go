// SPDX-License-Identifier: Apache-2.0

package past

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/model"
)

var began = time.Date(2026, 11, 27, 12, 0, 0, 500, time.UTC)

// record is one of a TCP connection from pod a/cli on n1 to pod b/srv on n2, of node n2.
func record(change func(*flows.Flow)) *flows.Flow {
	f := &flows.Flow{Start: began, End: began.Add(time.Second), Node: "n2", Verdict: flows.Allowed, Protocol: "tcp", Return: "vxlan",
		Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Port: 40000, Namespace: "a", Pod: "cli", Workload: "Deployment cli", Node: "n1", Labels: map[string]string{"app": "cli"}},
		Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Namespace: "b", Pod: "srv", Node: "n2", Labels: map[string]string{"app": "srv"}},
		Ingress:     &events.End{}, Sent: flows.Counters{Packets: 3, Bytes: 300}, Received: flows.Counters{Packets: 2, Bytes: 200}}
	if change != nil {
		change(f)
	}
	return f
}

func questionsOf(bySource bool, now func(model.Name) *model.Pod, records ...*flows.Flow) ([]*Question, *Past) {
	p := New(bySource)
	for _, f := range records {
		p.Add(f)
	}
	return p.Questions(now), p
}

// atSource is the record of the client's node.
func atSource(f *flows.Flow) { f.Node, f.Ingress, f.Egress = "n1", nil, &events.End{} }

// A connection counts once, however many nodes and intervals have seen it; tries of what was denied
// count by packets.
func TestCounts(t *testing.T) {
	t.Parallel()
	again := func(f *flows.Flow) { f.Start, f.End = f.Start.Add(900*time.Millisecond), f.End.Add(time.Minute) }
	other := func(f *flows.Flow) { f.Source.Port++ }
	q, _ := questionsOf(false, nil, record(nil), record(again), record(other), record(func(f *flows.Flow) { f.Start = f.Start.Add(time.Hour) }))
	if len(q) != 1 || q[0].Count() != 3 || q[0].Records() != 4 || q[0].Bytes() != 2000 || !q[0].First.Equal(began) {
		t.Errorf("%+v: %d connections", q[0], q[0].Count())
	}
	q, _ = questionsOf(false, nil, record(atSource), record(nil))
	if len(q) != 2 || q[0].Egress+q[1].Egress != Allowed || q[0].Ingress+q[1].Ingress != Allowed {
		t.Errorf("of two nodes: %+v", q)
	}
	if q, _ = questionsOf(true, nil, record(nil), record(other)); len(q) != 2 || q[0].SourcePort != 40000 || !q[0].HasSource {
		t.Errorf("by source port: %+v", q)
	}
	denied := func(packets uint64) *flows.Flow {
		return record(func(f *flows.Flow) { f.Verdict, f.Reason, f.Sent.Packets = flows.Denied, "POLICY_INGRESS", packets })
	}
	if q, p := questionsOf(true, nil, denied(5)); len(q) != 1 || q[0].Count() != 5 || q[0].Ingress != Denied || q[0].HasSource || p.Denied != 1 {
		t.Errorf("denied: %+v", q)
	}
	if q, _ := questionsOf(false, nil, record(func(f *flows.Flow) { f.Start, f.Ingress = time.Time{}, nil })); q[0].Ingress != Allowed || q[0].Egress != Nothing {
		t.Errorf("open before flows were recorded: %+v", q)
	}
	if q, _ := questionsOf(true, nil, denied(1)); !q[0].HasSource {
		t.Errorf("denied once: %+v", q)
	}
	q, p := questionsOf(false, nil, record(func(f *flows.Flow) { f.Verdict, f.Reason = flows.Dropped, "NO_BACKEND" }), record(func(f *flows.Flow) { f.Verdict, f.Reason = flows.Denied, "HOST_INGRESS" }))
	if len(q) != 0 || len(p.Other) != 2 || p.Records != 2 {
		t.Errorf("%+v, left out %v", q, p.Other)
	}
}

// What a record does not say is lacking, and not made up.
func TestLacking(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		change func(*flows.Flow)
		want   string
		port   uint16
	}{
		{nil, "", 80},
		{func(f *flows.Flow) { f.Destination.Port = 0 }, LackPort, 0},
		{func(f *flows.Flow) { f.Protocol = "icmp" }, LackProtocol, 0},
		{func(f *flows.Flow) { f.Protocol, f.ICMP = "icmp", "8/0" }, "", 8 << 8},
		{func(f *flows.Flow) { f.Protocol, f.ICMP = "icmpv6", "3/1" }, "", 3<<8 | 1},
		{func(f *flows.Flow) { f.Protocol, f.ICMP = "icmp", "65528/0" }, LackProtocol, 0},
		{func(f *flows.Flow) { f.Protocol = "proto47" }, "", 0},
		{func(f *flows.Flow) { f.Protocol = "any" }, LackProtocol, 0},
		{func(f *flows.Flow) { f.Source.Labels, f.Source.Node = nil, "" }, LackLabels, 80},
	} {
		q, _ := questionsOf(false, nil, record(x.change))
		if len(q) != 1 || q[0].Lacking != x.want || q[0].Port != x.port {
			t.Errorf("%+v: want %q, port %d", q[0], x.want, x.port)
		}
	}
}

// A pod whose labels a record lacks has those of its other records, if these leave no doubt; one
// that has none now is one without labels.
func TestLabelsOfOtherRecords(t *testing.T) {
	t.Parallel()
	blank := func(after time.Duration) *flows.Flow {
		return record(func(f *flows.Flow) {
			f.Source.Labels, f.Source.Node = nil, ""
			f.Start, f.End = f.Start.Add(after), f.End.Add(after)
		})
	}
	labelled := func(app string, after time.Duration) *flows.Flow {
		return record(func(f *flows.Flow) {
			atSource(f)
			f.Source.Labels = map[string]string{"app": app}
			f.Start, f.End = f.Start.Add(after), f.End.Add(after)
		})
	}
	find := func(now func(model.Name) *model.Pod, records ...*flows.Flow) string {
		all, _ := questionsOf(false, now, records...)
		for _, q := range all {
			if q.Ingress == Allowed {
				return q.From.Pod.Labels["app"] + q.Lacking
			}
		}
		return "no such question"
	}
	pod := func(created time.Time, labels map[string]string) func(model.Name) *model.Pod {
		return func(model.Name) *model.Pod {
			return &model.Pod{Labels: labels, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Created: created.Unix()}
		}
	}
	other := labelled("y", 0)
	other.Source.Address = netip.MustParseAddr("10.0.0.9")
	for _, x := range []struct{ got, want string }{
		{find(nil, blank(0), labelled("x", time.Hour)), "x"},
		{find(nil, blank(0), labelled("x", time.Hour), other), "x"},
		{find(nil, blank(0), labelled("x", 0), labelled("y", time.Hour)), "x"},
		{find(nil, blank(0), labelled("x", 0), labelled("y", 0)), LackLabels},
		{find(nil, blank(0), other), LackLabels},
		{find(nil, blank(0)), LackLabels},
		{find(pod(began.Add(-time.Hour), nil), blank(0)), ""},
		{find(pod(began.Add(time.Hour), nil), blank(0)), LackLabels},
		{find(pod(began.Add(-time.Hour), map[string]string{"app": "z"}), blank(0)), LackLabels},
	} {
		if x.got != x.want {
			t.Errorf("labels are %q, want %q", x.got, x.want)
		}
	}
	q, _ := questionsOf(false, nil, labelled("x", 0), labelled("y", time.Hour))
	if len(q) != 2 || q[0].From.Pod == q[1].From.Pod {
		t.Errorf("a pod that gets other labels is not two: %+v", q)
	}
}

// A client that is no pod may be the pod's own node, unless something says that it is not.
func TestFromHost(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		change func(*flows.Flow)
		want   bool
	}{
		{func(f *flows.Flow) { f.Return = "stack" }, true},
		{func(f *flows.Flow) { f.Return = "" }, true},
		{func(f *flows.Flow) { f.Return = "direct" }, false},
		{func(f *flows.Flow) { f.Return, f.Ingress.Rule = "stack", &events.Rule{Kind: "NetworkPolicy"} }, false},
		{func(f *flows.Flow) { f.Return, f.Ingress, f.Node = "stack", nil, "n1" }, false},
		{func(f *flows.Flow) { f.Return, f.Ingress = "stack", nil }, true}, // open before flows were recorded
		{func(f *flows.Flow) { f.Return, f.Verdict, f.Reason = "", flows.Denied, "POLICY_INGRESS" }, false},
	} {
		q, _ := questionsOf(false, nil, record(func(f *flows.Flow) {
			f.Source = flows.Peer{Address: netip.MustParseAddr("192.0.2.1"), Port: 1}
			x.change(f)
		}))
		if q[0].FromHost != x.want {
			t.Errorf("%+v: want %t", q[0], x.want)
		}
	}
}

// A file has records one a line; what is none is an error that says where.
func TestFile(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	for _, f := range []*flows.Flow{record(nil), record(func(f *flows.Flow) { f.End = f.End.Add(time.Hour) })} {
		if err := to.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	count := func(*flows.Flow) error { n++; return nil }
	good := text.String()
	if _, _, err := (&File{"f", strings.NewReader(good)}).Each(t.Context(), began.Add(time.Minute), count); err != nil || n != 1 {
		t.Errorf("%d records: %v", n, err)
	}
	for _, bad := range []string{good + "{}\n", good + "{", good + `{"verdict":"allowed"}`, "apiVersion: v1"} {
		if _, _, err := (&File{"records.json", strings.NewReader(bad)}).Each(t.Context(), time.Time{}, count); err == nil || !strings.Contains(err.Error(), "records.json: record") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	full := errors.New("full")
	if _, _, err := (&File{"f", strings.NewReader(good)}).Each(t.Context(), time.Time{}, func(*flows.Flow) error { return full }); !errors.Is(err, full) {
		t.Error(err)
	}
}

// The store is asked where there is one, and the agents where it does not answer; an answer that
// ends in the middle is none.
func TestStore(t *testing.T) {
	t.Parallel()
	write := func(out io.Writer, lines ...flows.Line) error {
		for to := json.NewEncoder(out); len(lines) > 0; lines = lines[1:] {
			if err := to.Encode(lines[0]); err != nil {
				return err
			}
		}
		return nil
	}
	agents := ask.Agents{Nodes: []string{"n1"}, Ask: func(_ context.Context, node string, _ wire.Question, out io.Writer) error {
		return write(out, flows.Line{Flow: record(nil)}, flows.Line{Status: &flows.Status{Node: node}})
	}}
	for name, c := range map[string]struct {
		answer      func(out io.Writer) error
		n           int
		gaps, notes string
		fails       bool
	}{
		"all": {answer: func(out io.Writer) error {
			return write(out, flows.Line{Flow: record(nil)}, flows.Line{Flow: record(nil)}, flows.Line{Store: &flows.StoreStatus{Oldest: began.Add(-time.Hour)}})
		}, n: 2},
		"what it does not have": {answer: func(out io.Writer) error {
			return write(out, flows.Line{Store: &flows.StoreStatus{Oldest: began, Silent: []string{"n9"}, Lost: map[string]uint64{"old": 7}}})
		}, gaps: "no records of before 2026-11-27T12:00:00Z|7 (old)|n9"},
		"sums": {answer: func(out io.Writer) error {
			return write(out, flows.Line{Store: &flows.StoreStatus{Oldest: began.Add(-time.Hour), Coarse: began, CoarseSeconds: 60}})
		}, notes: "are coarser"},
		"no store":             {answer: func(io.Writer) error { return agentapi.ErrNoStore }, n: 1},
		"its failure":          {answer: func(io.Writer) error { return errors.New("its disk is gone") }, n: 1, notes: "its disk is gone"},
		"an end in the middle": {answer: func(out io.Writer) error { return write(out, flows.Line{Flow: record(nil)}) }, n: 1, fails: true},
	} {
		from := &Nodes{Agents: agents, Store: &ask.Store{Ask: func(_ context.Context, _ wire.Question, out io.Writer) error { return c.answer(out) }}}
		n := 0
		gaps, notes, err := from.Each(t.Context(), began.Add(-time.Minute), func(*flows.Flow) error { n++; return nil })
		if n != c.n || (err != nil) != c.fails {
			t.Errorf("%s: %d records, %v", name, n, err)
		}
		if (c.gaps == "") != (len(gaps) == 0) || (c.notes == "") != (len(notes) == 0) {
			t.Errorf("%s: %q, %q", name, gaps, notes)
		}
		for want, got := range map[string][]string{c.gaps: gaps, c.notes: notes} {
			for part := range strings.SplitSeq(want, "|") {
				if !strings.Contains(strings.Join(got, "\n"), part) {
					t.Errorf("%s: %q is not in %q", name, part, got)
				}
			}
		}
	}
}

// Of agents it is said who does not answer, and since when records are kept.
func TestAgents(t *testing.T) {
	t.Parallel()
	a := &Nodes{Agents: ask.Agents{Nodes: []string{"n1", "n2", "n3"}, Ask: func(_ context.Context, node string, _ wire.Question, out io.Writer) error {
		if node == "n3" {
			return errors.New("away")
		}
		to := json.NewEncoder(out)
		if err := to.Encode(flows.Line{Flow: record(nil)}); err != nil {
			return err
		}
		return to.Encode(flows.Line{Status: &flows.Status{Node: node, Oldest: began, Lost: map[string]uint64{"old": uint64(len(node) - 1), "ring": 2}}})
	}}}
	n := 0
	gaps, notes, err := a.Each(t.Context(), began.Add(-time.Hour), func(*flows.Flow) error { n++; return nil })
	if err != nil || n != 2 || len(gaps) != 3 || !strings.Contains(gaps[2], "n3 has no answer: away") || !strings.Contains(gaps[0], "no records of before 2026-11-27T12:00:00Z") || len(notes) != 2 {
		t.Errorf("%d records, %q, %q: %v", n, gaps, notes, err)
	}
	if gaps, _, _ := a.Each(t.Context(), began, func(*flows.Flow) error { return nil }); len(gaps) != 1 {
		t.Errorf("what is older was not asked for: %q", gaps)
	}
	a.Agents.Nodes = []string{"n3"}
	if _, _, err := a.Each(t.Context(), began, nil); err == nil || !strings.Contains(err.Error(), "away") {
		t.Error(err)
	}
}

// A record that is a sum counts as the connections that ended in it, and has no source port.
func TestSumsOfConnections(t *testing.T) {
	t.Parallel()
	p := New(true)
	for _, ended := range []uint32{0, 7} {
		p.Add(record(func(f *flows.Flow) { f.Source.Port, f.Records, f.Connections = 0, 9, ended }))
	}
	got := p.Questions(nil)
	if len(got) != 1 || got[0].Count() != 8 || got[0].Records() != 2 || got[0].HasSource {
		t.Errorf("%+v", got)
	}
}
