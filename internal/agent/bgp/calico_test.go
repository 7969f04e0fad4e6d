// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

var (
	began     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	changed   = time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	peer6     = netip.MustParseAddr("2001:db8::9")
	mesh      = netip.MustParseAddr("192.0.2.2")
	hidden    = netip.MustParseAddr("192.0.2.8")
	running   = &nodestate.State{BGP: &nodestate.BGP{ASN: 64512, Peers: []nodestate.BGPPeer{{Addr: mesh, Name: "mesh n2"}, {Addr: hidden, Name: "secret"}, {Addr: peer, Name: "rack-1"}, {Addr: peer6, Name: "all n3"}}}}
	peerTypes = map[string]v3.BGPPeerType{"rack-1": v3.BGPPeerTypeNodePeer, "all": v3.BGPPeerTypeGlobalPeer, "secret": v3.BGPPeerTypeGlobalPeer}
)

func statusNow() *feed.Status {
	return &feed.Status{Version: "v1", Since: began, Applied: changed, RouterID: netip.MustParseAddr("192.0.2.1"), Peers: []feed.Peer{
		{Addr: mesh, State: "established", Since: began}, {Addr: peer, State: "active"}, {Addr: peer6, State: "openconfirm", Since: changed}}}
}

func routesNow() []feed.Route {
	return []feed.Route{
		{Prefix: netip.MustParsePrefix("10.65.1.0/26"), Best: true},
		{Prefix: netip.MustParsePrefix("10.65.2.0/26"), NextHop: mesh, Peer: mesh, Best: true, Installed: true, Interface: "eth0", Gateway: netip.MustParseAddr("192.0.2.254")},
		{Prefix: netip.MustParsePrefix("203.0.113.0/24"), NextHop: peer, Peer: peer, Best: true},
		{Prefix: netip.MustParsePrefix("2001:db8:113::/64"), NextHop: peer6, Peer: peer6, Best: true, Installed: true, Interface: "eth0", Gateway: peer6},
	}
}

func TestReport(t *testing.T) {
	all := []v3.NodeStatusClassType{v3.NodeStatusClassTypeAgent, v3.NodeStatusClassTypeBGP, v3.NodeStatusClassTypeRoutes}
	report := func(state *nodestate.State, st *feed.Status, answer feed.Answer, err error, classes ...v3.NodeStatusClassType) (*v3.CalicoNodeStatusStatus, int, error) {
		t.Helper()
		r := &reporter{state: state, status: st, peers: peerTypes}
		out, left, err := r.report(t.Context(), classes, &process{status: st, answer: answer, err: err})
		if out != nil {
			if out.LastUpdated.IsZero() {
				t.Error("it does not say when")
			}
			out.LastUpdated = metav1.Time{}
		}
		return out, left, err
	}
	daemon := v3.BGPDaemonStatus{State: v3.BGPDaemonStateReady, Version: "weir-bgp v1", RouterID: "192.0.2.1", LastBootTime: "2026-01-02 03:04:05", LastReconfigurationTime: "2026-01-02 04:00:00"}
	sessions := v3.CalicoNodeBGPStatus{NumberEstablishedV4: 1, NumberNotEstablishedV4: 2, NumberNotEstablishedV6: 1,
		PeersV4: []v3.CalicoNodePeer{
			{PeerIP: "192.0.2.2", Type: v3.BGPPeerTypeNodeMesh, State: v3.BGPSessionStateEstablished, Since: "2026-01-02 03:04:05"},
			{PeerIP: "192.0.2.8", Type: v3.BGPPeerTypeGlobalPeer, State: v3.BGPSessionStateIdle},
			{PeerIP: "192.0.2.9", Type: v3.BGPPeerTypeNodePeer, State: v3.BGPSessionStateActive}},
		PeersV6: []v3.CalicoNodePeer{{PeerIP: "2001:db8::9", Type: v3.BGPPeerTypeGlobalPeer, State: v3.BGPSessionStateOpenConfirm, Since: "2026-01-02 04:00:00"}}}
	routes := v3.CalicoNodeBGPRouteStatus{
		RoutesV4: []v3.CalicoNodeRoute{
			{Type: v3.RouteTypeRIB, Destination: "10.65.1.0/26", LearnedFrom: v3.CalicoNodeRouteLearnedFrom{SourceType: v3.RouteSourceTypeStatic}},
			{Type: v3.RouteTypeFIB, Destination: "10.65.2.0/26", Gateway: "192.0.2.254", Interface: "eth0", LearnedFrom: v3.CalicoNodeRouteLearnedFrom{SourceType: v3.RouteSourceTypeNodeMesh, PeerIP: "192.0.2.2"}},
			{Type: v3.RouteTypeRIB, Destination: "203.0.113.0/24", Gateway: "192.0.2.9", LearnedFrom: v3.CalicoNodeRouteLearnedFrom{SourceType: v3.RouteSourceTypeBGPPeer, PeerIP: "192.0.2.9"}}},
		RoutesV6: []v3.CalicoNodeRoute{{Type: v3.RouteTypeFIB, Destination: "2001:db8:113::/64", Gateway: "2001:db8::9", Interface: "eth0", LearnedFrom: v3.CalicoNodeRouteLearnedFrom{SourceType: v3.RouteSourceTypeBGPPeer, PeerIP: "2001:db8::9"}}}}
	is := func(what string, got *v3.CalicoNodeStatusStatus, err error, want v3.CalicoNodeStatusStatus) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, &want) {
			t.Errorf("%s: %v\n%+v, want\n%+v", what, err, got, want)
		}
	}
	answer := feed.Answer{Routes: routesNow()}
	got, _, err := report(running, statusNow(), answer, nil, all...)
	is("all", got, err, v3.CalicoNodeStatusStatus{Agent: v3.CalicoNodeAgentStatus{BIRDV4: daemon, BIRDV6: daemon}, BGP: sessions, Routes: routes})
	got, _, err = report(running, statusNow(), answer, nil, v3.NodeStatusClassTypeRoutes)
	is("routes alone", got, err, v3.CalicoNodeStatusStatus{Routes: routes})

	away := v3.BGPDaemonStatus{State: v3.BGPDaemonStateNotReady}
	idle := sessions
	idle.NumberEstablishedV4, idle.NumberNotEstablishedV4 = 0, 3
	idle.PeersV4, idle.PeersV6 = append([]v3.CalicoNodePeer(nil), sessions.PeersV4...), append([]v3.CalicoNodePeer(nil), sessions.PeersV6...)
	for _, list := range [][]v3.CalicoNodePeer{idle.PeersV4, idle.PeersV6} {
		for i := range list {
			list[i].State, list[i].Since = v3.BGPSessionStateIdle, ""
		}
	}
	got, _, err = report(running, nil, feed.Answer{}, feed.ErrAway, all...)
	is("no process", got, err, v3.CalicoNodeStatusStatus{Agent: v3.CalicoNodeAgentStatus{BIRDV4: away, BIRDV6: away}, BGP: idle})
	got, _, err = report(&nodestate.State{}, nil, feed.Answer{}, nil, all...)
	is("not in use", got, err, v3.CalicoNodeStatusStatus{Agent: v3.CalicoNodeAgentStatus{BIRDV4: away, BIRDV6: away}})
	if _, _, err := report(running, statusNow(), feed.Answer{}, context.DeadlineExceeded, all...); err == nil {
		t.Error("a process that does not answer has no routes")
	}

	many := feed.Answer{More: 3}
	for i := range maxRoutes + 5 {
		many.Routes = append(many.Routes, feed.Route{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)})
	}
	if got, left, err := report(running, statusNow(), many, nil, all...); err != nil || left != 8 || len(got.Routes.RoutesV4) != maxRoutes {
		t.Errorf("%d routes are left out, %d are there, %v", left, len(got.Routes.RoutesV4), err)
	}
}

func TestCheck(t *testing.T) {
	seconds := func(n uint32) *uint32 { return &n }
	bgp := []v3.NodeStatusClassType{v3.NodeStatusClassTypeBGP}
	for _, c := range []struct {
		spec   v3.CalicoNodeStatusSpec
		period time.Duration
		says   string
	}{
		{v3.CalicoNodeStatusSpec{Classes: bgp}, 10 * time.Second, ""},
		{v3.CalicoNodeStatusSpec{Classes: bgp, UpdatePeriodSeconds: seconds(0)}, 0, ""},
		{v3.CalicoNodeStatusSpec{Classes: bgp, UpdatePeriodSeconds: seconds(86400)}, 24 * time.Hour, ""},
		{v3.CalicoNodeStatusSpec{Classes: bgp, UpdatePeriodSeconds: seconds(86401)}, 24 * time.Hour, `spec.updatePeriodSeconds = "86401": is more than a day; 86400 is in force`},
		{v3.CalicoNodeStatusSpec{UpdatePeriodSeconds: seconds(5)}, 5 * time.Second, "spec.classes: is empty"},
		{v3.CalicoNodeStatusSpec{Classes: []v3.NodeStatusClassType{"Bgp"}}, 10 * time.Second, `spec.classes = "Bgp": is none of Agent, BGP and Routes`},
	} {
		period, problems := check("x", &c.spec)
		if period != c.period || (len(problems) > 0) != (c.says != "") || len(problems) > 0 && !strings.Contains(problems[0].String(), "CalicoNodeStatus x "+c.says) {
			t.Errorf("%+v: %s, %v", c.spec, period, problems)
		}
	}
}

func TestPeerTypes(t *testing.T) {
	got := PeerTypes(&model.Cluster{BGPPeers: map[string]*model.BGPPeer{"a": {Node: "n1"}, "b": {NodeSelector: "all()"}, "c": {}}})
	if want := (map[string]v3.BGPPeerType{"a": v3.BGPPeerTypeNodePeer, "b": v3.BGPPeerTypeNodePeer, "c": v3.BGPPeerTypeGlobalPeer}); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

// swap is a process whose status changes.
type swap struct{ status atomic.Pointer[feed.Status] }

func (s *swap) Status() *feed.Status { return s.status.Load() }

func (s *swap) Ask(context.Context, feed.Ask) (feed.Answer, error) {
	return feed.Answer{Routes: routesNow()}, nil
}

// An agent with its rights fills the objects of its node at a real API server, again and again,
// and leaves those of others alone.
func TestWriter(t *testing.T) { testWriter(t, true) }

// The same where the API server cannot tell the objects of a node apart.
func TestWriterWithoutFieldSelectors(t *testing.T) { testWriter(t, false) }

func testWriter(t *testing.T, selectable bool) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		switch u.GetKind() + " " + u.GetName() {
		case "CustomResourceDefinition caliconodestatuses.projectcalico.org", "CustomResourceDefinition ipamblocks.weir.dev", "CustomResourceDefinition nodestatuses.weir.dev",
			"ClusterRole weir-node", "ClusterRoleBinding weir-node", "ValidatingAdmissionPolicy weir-node-own-objects", "ValidatingAdmissionPolicyBinding weir-node-own-objects":
			if versions, is, _ := unstructured.NestedSlice(u.Object, "spec", "versions"); is && !selectable {
				for _, v := range versions {
					delete(v.(map[string]any), "selectableFields")
				}
				if err := unstructured.SetNestedSlice(u.Object, versions, "spec", "versions"); err != nil {
					t.Fatal(err)
				}
			}
			s.Create(u)
		}
	}
	api := s.Clients.Dynamic.Resource(statusResource)
	create := func(name, node string, period any) {
		t.Helper()
		spec := map[string]any{"node": node, "classes": []any{"Agent", "BGP", "Routes"}}
		if period != nil {
			spec["updatePeriodSeconds"] = period
		}
		s.Create(apitest.Object("projectcalico.org/v3", "CalicoNodeStatus", name, spec))
	}
	read := func(name string) *v3.CalicoNodeStatus {
		t.Helper()
		u, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := &v3.CalicoNodeStatus{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	create("own", "n1", int64(1))
	create("once", "n1", int64(86400))
	create("off", "n1", int64(0))
	create("other", "n2", int64(1))
	p := &swap{}
	p.status.Store(statusNow())
	var state atomic.Pointer[nodestate.State]
	ctx, cancel := context.WithCancel(t.Context())
	w := &Writer{Node: "n1", API: s.As("system:serviceaccount:kube-system:weir-node", "n1").Dynamic, Process: p, State: state.Load, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Peers: func(context.Context) (map[string]v3.BGPPeerType, error) { return peerTypes, nil }}
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	state.Store(running)
	apitest.Eventually(t, 0, "a status", func() error {
		if got := read("own"); got.Status.BGP.NumberEstablishedV4 != 1 || len(got.Status.Routes.RoutesV4) != 3 || got.Status.Agent.BIRDV4.State != v3.BGPDaemonStateReady {
			return fmt.Errorf("it is %+v; %v", got.Status, w.Problems())
		}
		if read("once").Status.LastUpdated.IsZero() {
			return errors.New("the one that is updated once a day is not there")
		}
		return nil
	})
	first := read("once").Status.LastUpdated
	fewer := statusNow()
	fewer.Peers = nil
	p.status.Store(fewer)
	apitest.Eventually(t, 0, "another status", func() error {
		if got := read("own"); got.Status.BGP.NumberEstablishedV4 != 0 || got.Status.BGP.NumberNotEstablishedV4 != 3 {
			return fmt.Errorf("it is %+v", got.Status)
		}
		return nil
	})
	if got := read("once").Status.LastUpdated; !got.Equal(&first) {
		t.Errorf("what is updated once a day was written at %s and at %s", first, got)
	}
	// A change of the spec counts at once.
	patch := []byte(`{"spec":{"classes":["Agent"]}}`)
	if _, err := api.Patch(ctx, "once", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, 0, "a status with fewer classes", func() error {
		if got := read("once"); len(got.Status.Routes.RoutesV4) > 0 || len(got.Status.BGP.PeersV4) > 0 || got.Status.Agent.BIRDV4.State != v3.BGPDaemonStateReady {
			return fmt.Errorf("it is %+v", got.Status)
		}
		return nil
	})
	for _, name := range []string{"off", "other"} {
		if got := read(name); !got.Status.LastUpdated.IsZero() {
			t.Errorf("%s was written: %+v", name, got.Status)
		}
	}
	if got := w.Problems(); len(got) > 0 {
		t.Errorf("problems: %v", got)
	}
	// What is not in use is not left as if it were.
	p.status.Store(nil)
	state.Store(&nodestate.State{})
	apitest.Eventually(t, 0, "the last status", func() error {
		for _, name := range []string{"own", "once"} {
			if got := read(name); got.Status.Agent.BIRDV4.State != v3.BGPDaemonStateNotReady || len(got.Status.BGP.PeersV4) > 0 {
				return fmt.Errorf("%s is %+v", name, got.Status)
			}
		}
		return nil
	})
}
