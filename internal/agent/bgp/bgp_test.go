// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/nodestate"
)

// process is a BGP process that says what it is told to.
type process struct {
	status *feed.Status
	answer feed.Answer
	err    error
	asked  feed.Ask
}

func (p *process) Status() *feed.Status { return p.status }

func (p *process) Ask(_ context.Context, q feed.Ask) (feed.Answer, error) {
	p.asked = q
	return p.answer, p.err
}

var (
	peer  = netip.MustParseAddr("192.0.2.9")
	inUse = &nodestate.State{BGP: &nodestate.BGP{ASN: 64512, Peers: []nodestate.BGPPeer{{Addr: peer, Name: "rack-1"}, {Addr: netip.MustParseAddr("192.0.2.2"), Name: "mesh n2"}, {Addr: netip.MustParseAddr("192.0.2.3"), Name: "mesh n3"}}}}
)

func TestServe(t *testing.T) {
	for _, c := range []struct {
		what, target string
		process      process
		state        *nodestate.State
		code         int
		asked        feed.Ask
	}{
		{"the cluster is not known", "/bgp", process{}, nil, http.StatusServiceUnavailable, feed.Ask{}},
		{"all sessions", "/bgp", process{status: &feed.Status{}}, inUse, http.StatusOK, feed.Ask{}},
		{"empty, as the controller hands it on", "/bgp?neighbor=", process{}, inUse, http.StatusOK, feed.Ask{}},
		{"one session", "/bgp?neighbor=::ffff:192.0.2.9", process{answer: feed.Answer{Neighbour: &feed.Neighbour{LocalASN: 7}}}, inUse, http.StatusOK, feed.Ask{Neighbour: peer}},
		{"an older process", "/bgp?neighbor=192.0.2.9", process{answer: feed.Answer{Routes: []feed.Route{{}}}}, inUse, http.StatusServiceUnavailable, feed.Ask{Neighbour: peer}},
		{"no address", "/bgp?neighbor=x", process{}, inUse, http.StatusBadRequest, feed.Ask{}},
		{"no such session", "/bgp?neighbor=192.0.2.9", process{answer: feed.Answer{Err: "no session"}}, inUse, http.StatusNotFound, feed.Ask{Neighbour: peer}},
		{"no process", "/bgproutes", process{err: feed.ErrAway}, inUse, http.StatusServiceUnavailable, feed.Ask{}},
		{"a process that hangs", "/bgproutes", process{err: context.DeadlineExceeded}, inUse, http.StatusServiceUnavailable, feed.Ask{}},
		{"all routes", "/bgproutes?peer=&sent=&prefix=", process{}, inUse, http.StatusOK, feed.Ask{}},
		{"sent", "/bgproutes?peer=192.0.2.9&sent=true&prefix=10.1.2.3/8", process{}, inUse, http.StatusOK, feed.Ask{Peer: peer, Sent: true, Prefix: netip.MustParsePrefix("10.0.0.0/8")}},
		{"to an address", "/bgproutes?prefix=2001:db8::1", process{}, inUse, http.StatusOK, feed.Ask{Prefix: netip.MustParsePrefix("2001:db8::1/128"), Covering: true}},
		{"sent to nobody", "/bgproutes?sent=true", process{}, inUse, http.StatusBadRequest, feed.Ask{}},
		{"sent perhaps", "/bgproutes?peer=192.0.2.9&sent=perhaps", process{}, inUse, http.StatusBadRequest, feed.Ask{}},
		{"no prefix", "/bgproutes?prefix=10.0.0.0/99", process{}, inUse, http.StatusBadRequest, feed.Ask{}},
		{"no peer", "/bgproutes?peer=rack-1", process{}, inUse, http.StatusBadRequest, feed.Ask{}},
	} {
		s := &Server{Process: &c.process, State: func() *nodestate.State { return c.state }}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /bgp", s.ServePeers)
		mux.HandleFunc("GET /bgproutes", s.ServeRoutes)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.target, nil))
		if w.Code != c.code || c.process.asked != c.asked {
			t.Errorf("%s: %d, asked %+v: %s", c.what, w.Code, c.process.asked, w.Body)
		}
		var got feed.Shown
		if c.what == "one session" {
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Neighbour == nil || got.Neighbour.LocalASN != 7 || got.Desired == nil {
				t.Errorf("one session: %+v %v", got, err)
			}
		}
	}
}

func TestNodeStatus(t *testing.T) {
	if got := NodeStatus(&nodestate.State{}, nil); got != nil {
		t.Errorf("not in use: %+v", got)
	}
	want := &weirv1.BGPStatus{Sessions: 3, Objects: []string{"mesh", "rack-1"}}
	if got := NodeStatus(inUse, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("no process: %+v", got)
	}
	want.Established, want.LearnedRoutes, want.InstalledRoutes = 1, 5, 4
	st := &feed.Status{Peers: []feed.Peer{{State: "established"}, {State: "active"}}, Routes: fib.Status{Learned: 5, Installed: 4}}
	if got := NodeStatus(inUse, st); !reflect.DeepEqual(got, want) {
		t.Errorf("in use: %+v", got)
	}
}

// TestComplete: that all sessions are up is told at once, one that ends is not.
func TestComplete(t *testing.T) {
	of := func(sessions, established int32) *weirv1.BGPStatus {
		return &weirv1.BGPStatus{Sessions: sessions, Established: established}
	}
	for _, c := range []struct {
		before, now *weirv1.BGPStatus
		want        bool
	}{{nil, nil, false}, {nil, of(2, 1), false}, {nil, of(2, 2), true}, {of(2, 1), of(2, 2), true}, {of(2, 2), of(2, 1), false}, {of(2, 2), of(2, 2), false}, {of(2, 2), nil, false}} {
		if Complete(c.before, c.now) != c.want {
			t.Errorf("%+v to %+v is not %v", c.before, c.now, c.want)
		}
	}
}
