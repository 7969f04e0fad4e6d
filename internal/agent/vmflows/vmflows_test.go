// SPDX-License-Identifier: Apache-2.0

package vmflows

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// plane notes what is written.
type plane struct {
	has     []conntrack.Entry
	put     []conntrack.Entry
	ifindex int
	err     error
}

func (p *plane) FlowsOf(netip.Addr) ([]conntrack.Entry, error) { return p.has, p.err }

func (p *plane) PutFlows(_ netip.Addr, ifindex int, flows []conntrack.Entry) error {
	p.put, p.ifindex = append(p.put, flows...), ifindex
	return p.err
}

// machine is one whose address is vm, and that is at this node or moved to it where it has an
// endpoint.
type machine struct{ ep *model.LocalEndpoint }

func (m machine) Kept(a netip.Addr) string {
	if a == vm {
		return "it is"
	}
	return ""
}
func (m machine) EndpointOf(netip.Addr) *model.LocalEndpoint { return m.ep }

func newServer(p *plane, here bool) *Server {
	s := &Server{Plane: p, Machines: machine{}, State: nodestate.New, Log: slog.New(slog.DiscardHandler)}
	if here {
		s.Machines = machine{&model.LocalEndpoint{IfIndex: 7}}
	}
	return s
}

func (s *Server) asked(ctx context.Context, method, path, query, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Questions()[method+" "+path](w, httptest.NewRequestWithContext(ctx, method, path+"?"+query, strings.NewReader(body)))
	return w
}

func line(t *testing.T, f wire.MachineFlow) string {
	t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

var toMachine = wire.MachineFlow{Proto: 6, Src: at(far, 1000), Dst: at(vm, 80), State: conntrack.TCPEstablished, Left: 7}

// TestServer: flows are read where the machine leaves and written where it comes; a machine that
// announces itself waits for them, and not for long.
func TestServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const of = wire.MachineFlowsAddress + "=10.244.1.2"
		p := &plane{has: []conntrack.Entry{tracked(far, vm, vm, far), tracked(vm, outside, outside, self)}}
		s := newServer(p, true)
		if w := s.asked(t.Context(), http.MethodGet, wire.MachineFlowsPath, of, ""); w.Code != http.StatusOK || w.Body.String() != line(t, toMachine) {
			t.Errorf("read: %d %s", w.Code, w.Body)
		}
		began := time.Now()
		s.Arrived(t.Context(), []netip.Addr{vm})
		if time.Since(began) > 0 {
			t.Error("it waits where nobody brings flows")
		}
		arrival := func(ctx context.Context) chan int {
			out := make(chan int)
			go func() { out <- s.asked(ctx, http.MethodGet, wire.MachineArrivalPath, of, "").Code }()
			synctest.Wait()
			return out
		}
		answered := arrival(t.Context())
		came := make(chan time.Duration)
		arrive := func() {
			began := time.Now()
			s.Arrived(t.Context(), []netip.Addr{vm})
			came <- time.Since(began)
		}
		go arrive()
		if code := <-answered; code != http.StatusNoContent {
			t.Errorf("arrived: %d", code)
		}
		time.Sleep(time.Millisecond)
		for _, query := range []string{of, of + "&" + wire.MachineFlowsLast} {
			if w := s.asked(t.Context(), http.MethodPut, wire.MachineFlowsPath, query, line(t, toMachine)); w.Code != http.StatusNoContent {
				t.Errorf("taken: %d %s", w.Code, w.Body)
			}
		}
		if took := <-came; took != time.Millisecond || len(p.put) != 2 || p.ifindex != 7 {
			t.Errorf("it waited for %v; written are %+v at %d", took, p.put, p.ifindex)
		}
		answered = arrival(t.Context())
		go arrive()
		<-answered
		if took := <-came; took != bringWithin {
			t.Errorf("flows that do not come are waited for for %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		answered = arrival(ctx)
		cancel()
		<-answered
		if len(s.arrivals) != 0 {
			t.Errorf("a question that has ended waits: %+v", s.arrivals)
		}
		p.put, p.has = nil, []conntrack.Entry{tracked(vm, service, near, vm)}
		s.State = func() *nodestate.State {
			out := nodestate.New()
			out.Addrs[near] = nodestate.Addr{Kind: nodestate.AddrEndpoint}
			return out
		}
		if w := s.asked(t.Context(), http.MethodDelete, wire.MachineFlowsPath, of, ""); w.Code != http.StatusNoContent || len(p.put) != 1 || p.ifindex != 0 || p.put[0].Translated() {
			t.Errorf("left: %d %s, %+v at %d", w.Code, w.Body, p.put, p.ifindex)
		}
		p.err = errors.New("full")
		if w := s.asked(t.Context(), http.MethodPut, wire.MachineFlowsPath, of, line(t, toMachine)); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "full") {
			t.Errorf("not written: %d %s", w.Code, w.Body)
		}
	})
}

// TestHostileMachineFlows: a node that a machine leaves says what flows it has. Those of others are
// not taken, nor are any where no machine comes.
func TestHostileMachineFlows(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a compromised node makes flows of others up that another node is to let pass, as those of a virtual machine that moves", hostile.Node, hostile.ControlPlane, hostile.Both)
	const of = wire.MachineFlowsAddress + "=10.244.1.2"
	put := func(here bool, query string, f wire.MachineFlow) (int, int) {
		p := &plane{}
		w := newServer(p, here).asked(t.Context(), http.MethodPut, wire.MachineFlowsPath, query, line(t, f))
		return w.Code, len(p.put)
	}
	if code, n := put(true, of, toMachine); code != http.StatusNoContent || n != 1 {
		t.Fatalf("an honest flow: %d, %d written", code, n)
	}
	with := func(change func(*wire.MachineFlow)) wire.MachineFlow {
		f := toMachine
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		here  bool
		query string
		flow  wire.MachineFlow
	}{
		"where no machine comes":      {false, of, toMachine},
		"of a pod's address":          {true, wire.MachineFlowsAddress + "=10.244.1.3", with(func(f *wire.MachineFlow) { f.Dst = at(near, 80) })},
		"of no address":               {true, "", toMachine},
		"between others":              {true, of, with(func(f *wire.MachineFlow) { f.Dst = at(near, 80) })},
		"a Service of others":         {true, of, with(func(f *wire.MachineFlow) { f.Dst, f.Backend = at(service, 80), at(vm, 80) })},
		"led from the machine":        {true, of, with(func(f *wire.MachineFlow) { f.Backend = at(near, 80) })},
		"of another family":           {true, of, with(func(f *wire.MachineFlow) { f.Src = at(netip.MustParseAddr("fd00::1"), 1000) })},
		"of loopback":                 {true, of, with(func(f *wire.MachineFlow) { f.Src = at(netip.MustParseAddr("127.0.0.1"), 1000) })},
		"to many":                     {true, of, with(func(f *wire.MachineFlow) { f.Src, f.Dst = at(vm, 80), at(netip.MustParseAddr("224.0.0.1"), 80) })},
		"without a port":              {true, of, with(func(f *wire.MachineFlow) { f.Src = at(far, 0) })},
		"without an address":          {true, of, with(func(f *wire.MachineFlow) { f.Src = netip.AddrPort{} })},
		"with itself":                 {true, of, with(func(f *wire.MachineFlow) { f.Src = at(vm, 1000) })},
		"of a protocol without flows": {true, of, with(func(f *wire.MachineFlow) { f.Proto = 1 })},
		"that is half open":           {true, of, with(func(f *wire.MachineFlow) { f.State = conntrack.TCPSynSent })},
		"that is over":                {true, of, with(func(f *wire.MachineFlow) { f.State = conntrack.TCPClose })},
	} {
		if code, n := put(c.here, c.query, c.flow); code < 400 || n != 0 {
			t.Errorf("%s: %d, %d written", name, code, n)
		}
	}
}
