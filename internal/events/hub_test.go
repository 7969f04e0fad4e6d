// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// names is a Namer with one pod and one rule.
type names struct{ state *nodestate.State }

var podAddr, peerAddr = netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("203.0.113.7")

func newNames() names {
	s := nodestate.New()
	s.Rules.Set(7, nodestate.Rule{Kind: "NetworkPolicy", Name: "default/web", Detail: "ingress[0]", Tier: "default"})
	s.Rules.Set(8, nodestate.Rule{Kind: "default-deny", Name: "default/web,default/other", Detail: "ingress"})
	s.Rules.Set(9, nodestate.Rule{Kind: "Service", Name: "default/front", Detail: "port http"})
	id := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.7"), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(id, nodestate.Service{ID: id, Rule: 9})
	return names{s}
}

func (n names) State() *nodestate.State { return n.state }
func (n names) Pod(a netip.Addr) (model.Name, bool) {
	return model.Name{Namespace: "default", Name: "web"}, a == podAddr
}

// feed is a Source of a channel.
type feed struct {
	events chan dataplane.Event
	closed chan struct{}
}

func newFeed() *feed { return &feed{make(chan dataplane.Event), make(chan struct{})} }

func (f *feed) Read() (dataplane.Event, error) {
	select {
	case e := <-f.events:
		return e, nil
	case <-f.closed:
		return dataplane.Event{}, os.ErrClosed
	}
}

func (f *feed) Close() error {
	close(f.closed)
	return nil
}

func allowed() dataplane.Event {
	return dataplane.Event{Src: peerAddr, Dst: podAddr, Sport: 4000, Dport: 8080, Proto: model.ProtocolTCP, Hook: "from_uplink", Allowed: true,
		Ingress: dataplane.EventEnd{Local: true, Rule: 7}}
}

func denied() dataplane.Event {
	e := allowed()
	e.Allowed, e.Reason, e.Ingress.Rule = false, 1, 8
	return e
}

// started runs a hub on a feed; the last value of modes is what was set in the programs.
func started(t *testing.T) (*Hub, *feed, *[]bool) {
	t.Helper()
	var modes []bool
	h := NewHub("n1", newNames(), func(on bool) error { modes = append(modes, on); return nil }, slog.New(slog.DiscardHandler))
	f := newFeed()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, f) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h, f, &modes
}

func listen(t *testing.T, h *Hub, f Filter) *Listener {
	t.Helper()
	l, err := h.Listen(f)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestEventsAreNamed(t *testing.T) {
	t.Parallel()
	h, f, _ := started(t)
	l := listen(t, h, Filter{})
	d := denied()
	d.Again, d.Service = true, nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.7"), Port: 80, Proto: model.ProtocolTCP}
	d.Ingress.Staged, d.Ingress.StagedRule = true, 7
	f.events <- d
	e := <-l.Events()
	if e.Ingress == nil || *e.Ingress.Rule != (Rule{Kind: "default-deny", Name: "default/web,default/other", Detail: "ingress"}) || e.Egress != nil {
		t.Errorf("ends: %+v, %+v", e.Egress, e.Ingress)
	}
	line := e.String()
	for _, want := range []string{" n1 203.0.113.7 → default/web tcp:8080 DENIED by default-deny default/web,default/other ingress POLICY_INGRESS open flow",
		"service default/front port http", "staged ingress: would be ALLOWED by NetworkPolicy default/web ingress[0]"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	a := allowed()
	a.Ingress.Rule = 4711
	f.events <- a
	if e := <-l.Events(); e.Deciding().Kind != "gone" {
		t.Errorf("a rule that is no more: %+v", e.Deciding())
	}
}

func TestListenersGetWhatTheyWant(t *testing.T) {
	t.Parallel()
	h, f, modes := started(t)
	all := listen(t, h, Filter{Type: "all"})
	drops := listen(t, h, Filter{Type: "drop", Pod: "default/web"})
	logs := listen(t, h, Filter{Type: "log"})
	others := listen(t, h, Filter{Pod: "default/nobody"})
	logged := allowed()
	logged.Log = true
	for _, e := range []dataplane.Event{allowed(), denied(), logged, denied()} {
		f.events <- e
	}
	f.events <- allowed() // read by the hub only when those before were given
	got := func(l *Listener) (verdicts []string) {
		for len(l.Events()) > 0 {
			verdicts = append(verdicts, (<-l.Events()).Verdict)
		}
		return verdicts
	}
	if v := got(all); len(v) < 4 || !slices.Equal(v[:4], []string{"allowed", "denied", "allowed", "denied"}) {
		t.Errorf("all: %v", v)
	}
	if v := got(drops); !slices.Equal(v, []string{"denied", "denied"}) {
		t.Errorf("drops: %v", v)
	}
	if v := got(logs); !slices.Equal(v, []string{"allowed"}) {
		t.Errorf("logs: %v", v)
	}
	if v := got(others); len(v) > 0 {
		t.Errorf("of another pod: %v", v)
	}
	h.Remove(others)
	h.Remove(all)
	h.Remove(all)
	h.Remove(drops)
	h.Remove(logs)
	if want := []bool{true, true, true, true, true, false, false, false}; !slices.Equal(*modes, want) {
		t.Errorf("the programs were set to %v, not %v", *modes, want)
	}
}

func TestSlowListenerLosesEvents(t *testing.T) {
	t.Parallel()
	h, f, _ := started(t)
	slow := listen(t, h, Filter{})
	for range queue + 5 {
		f.events <- allowed()
	}
	quick := listen(t, h, Filter{})
	f.events <- denied()
	if e := <-quick.Events(); e.Verdict == "allowed" {
		<-quick.Events() // one that was under way when quick came
	}
	if n := h.Lost(); n < 5 {
		t.Errorf("%d events were lost, at least 5 had no room", n)
	}
	for range queue {
		<-slow.Events()
	}
	f.events <- denied()
	if e := <-slow.Events(); e.Lost < 5 {
		t.Errorf("the listener learns of %d lost events", e.Lost)
	}
}

func TestFiltersThatMeanNothing(t *testing.T) {
	t.Parallel()
	h, _, _ := started(t)
	for _, f := range []Filter{{Type: "drops"}, {Pod: "web"}, {Pod: "a/b/c"}} {
		if _, err := h.Listen(f); err == nil {
			t.Errorf("%+v is taken", f)
		}
	}
}
