// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/show"
	"github.com/weir-net/weir/internal/localsock"
	"github.com/weir-net/weir/internal/nodestate"
)

var bgpPeer = netip.MustParseAddr("192.0.2.9")

// shownBGP is a node with a session that is up, and one that is not.
func shownBGP() feed.Shown {
	up := feed.Peer{Addr: bgpPeer, Name: "rack-1", ASN: 64999, State: "established", Received: 3, Advertised: 1, GracefulRestart: true}
	down := feed.Peer{Addr: netip.MustParseAddr("2001:db8::9"), Name: "rack-1-v6" + controls, ASN: 64999, State: "active", Flaps: 2, LastError: "hold timer expired\nn9"}
	return feed.Shown{Desired: &nodestate.BGP{ASN: 64512, Peers: make([]nodestate.BGPPeer, 2)}, Status: &feed.Status{Peers: []feed.Peer{up, down}}}
}

// Nodes are asked, what they say is printed, and one that does not answer is named.
func TestBGP(t *testing.T) {
	t.Parallel()
	ask := func(_ context.Context, node string, q wire.Question, into any) error {
		var answer any
		switch node + q.Path {
		case "n1/bgp":
			answer = shownBGP()
		case "n2/bgp":
			answer = feed.Shown{Desired: &nodestate.BGP{Peers: make([]nodestate.BGPPeer, 1)}}
		case "n1/bgproutes":
			answer = feed.Answer{More: 4, Routes: []feed.Route{
				{Prefix: netip.MustParsePrefix("10.65.1.0/26"), Best: true},
				{Prefix: netip.MustParsePrefix("203.0.113.0/24"), NextHop: bgpPeer, Peer: bgpPeer, Path: "64999 65010", Best: true, Installed: true, Interface: "eth0", Gateway: bgpPeer},
				{Prefix: netip.MustParsePrefix("203.0.114.0/24"), NextHop: bgpPeer, Peer: bgpPeer, Path: "64999", Best: true, Stale: true},
				{Prefix: netip.MustParsePrefix("203.0.115.0/24"), NextHop: bgpPeer, Peer: bgpPeer, Installed: true, Interface: "eth1", Gateway: netip.MustParseAddr("192.0.2.8")},
			}}
		case "n1/bgp?neighbor":
			one := shownBGP()
			one.Neighbour = &feed.Neighbour{Peer: one.Status.Peers[0], LocalASN: 64512, Port: 179, Hold: 30, Keepalive: 10, OwnHold: 90, OwnKeepalive: 30, Restart: 120, PeerRestart: 60, MinTTL: 254,
				Families:     []feed.Family{{Name: "IPv4 unicast", Received: 3, Accepted: 2, Advertised: 1}},
				Capabilities: []feed.Capability{{Name: "route-refresh", Ours: true, Theirs: true}, {Name: "add-path", Theirs: true}, {Name: "fqdn", Ours: true}},
				Got:          feed.Messages{Total: 9, Open: 1, Update: 3, Keepalive: 5}}
			one.Neighbour.BFD = "up"
			answer = one
		default:
			if strings.HasPrefix(node, "n") {
				return fmt.Errorf("node %s: %w: no such session", node, agentapi.ErrRefused)
			}
			return fmt.Errorf("node %s: %w", node, agentapi.ErrNoAgent)
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, into)
	}
	nodes := []string{"n1", "n2", "gone"}
	contains := func(what, text string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(text, p) {
				t.Errorf("%s lacks %q:\n%s", what, p, text)
			}
		}
		if strings.Contains(text, "\nn9") || len(unseen(text)) > 0 {
			t.Errorf("%s: a node's words reach the terminal:\n%q", what, text)
		}
	}
	var out strings.Builder
	peers, err := askEach[feed.Shown](t.Context(), nodes, ask, "/bgp")
	if err := errors.Join(err, show.Peers(&out, peers)); err != nil {
		t.Fatal(err)
	}
	contains("peers", out.String(), "n1    192.0.2.9    rack-1", "established", "hold timer expired", "node n2: no BGP process runs", "\nnode gone: no agent", "1 of 3 sessions are established.")
	if peers.PeersWell() || !peers.Silent() {
		t.Error("a session that is down, or a node that does not answer, is well")
	}
	one := shownBGP()
	one.Status.Peers[1].State = "established"
	if well := (show.Answers[feed.Shown]{{Node: "n1", BGP: &one}, {Node: "n2", BGP: &feed.Shown{}}}); !well.PeersWell() || well.Silent() {
		t.Error("sessions that are up are not well")
	}

	routes, err := askEach[feed.Answer](t.Context(), nodes, ask, "/bgproutes")
	out.Reset()
	if err := errors.Join(err, show.Routes(&out, routes, false, 3)); err != nil {
		t.Fatal(err)
	}
	contains("routes", out.String(), "10.65.1.0/26    -          this node  -            best", "64999 65010  best, in kernel by eth0", "best, stale, not in kernel", "node n1: 5 routes more", "node n2: ")
	out.Reset()
	if err := show.Routes(&out, routes, false, 0); err != nil {
		t.Fatal(err)
	}
	contains("all routes", out.String(), "in kernel by eth1 to 192.0.2.8", "node n1: 4 routes more")

	neighbours, err := askEach[feed.Shown](t.Context(), []string{"n1", "n2"}, func(ctx context.Context, node string, _ wire.Question, into any) error {
		return ask(ctx, node, wire.Question{Path: "/bgp?neighbor"}, into)
	}, "/bgp?neighbor=192.0.2.9")
	out.Reset()
	if err := errors.Join(err, show.Neighbours(&out, neighbours, "192.0.2.9")); err != nil {
		t.Fatal(err)
	}
	contains("neighbor", out.String(), "n1 with 192.0.2.9 (rack-1)", "64512 here, 64999 there (external)", "hold 30 s, keepalive 10 s (asked for: 90 s, 30 s)", "for 120 s, and does; it asks for 60 s itself",
		"3 received, 2 accepted, 1 sent", "route-refresh, add-path (there only), fqdn (here only)", "9: 1 OPEN, 3 UPDATE, 5 KEEPALIVE", "a TTL below 254", "BFD:                up")
	if strings.Contains(out.String(), "node n2") || neighbours.Silent() {
		t.Errorf("a node without the session is named:\n%s", &out)
	}
	out.Reset()
	if err := show.Neighbours(&out, neighbours[1:], "192.0.2.9"); err != nil || !strings.Contains(out.String(), "no such session") {
		t.Errorf("the only node that was asked does not say why: %v\n%s", err, &out)
	}

	out.Reset()
	if err := show.Peers(&out, show.Answers[feed.Shown]{{Node: "n1", BGP: &feed.Shown{}}}); err != nil || out.String() != show.NotInUse+"\n" {
		t.Errorf("where BGP is not in use: %v %q", err, &out)
	}
	if _, err := askEach[feed.Shown](t.Context(), nodes, func(context.Context, string, wire.Question, any) error { return agentapi.ErrNoRight }, "/bgp"); !errors.Is(err, agentapi.ErrNoRight) {
		t.Errorf("without the right: %v", err)
	}
}

// The agent of the machine is asked by its socket, without an API server.
func TestBGPLocal(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "weir-local-") //nolint:usetesting // a path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if _, err := weir(t, "/nonexistent", "", "bgp", "peers", "--local="+dir); err == nil || !strings.Contains(err.Error(), "nobody answers at") {
		t.Errorf("no agent: %v", err)
	}
	l, err := localsock.Listen(filepath.Join(dir, wire.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	asked := ""
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked = r.URL.String(); r.URL.Path == "/bgproutes" {
			http.Error(w, "no BGP process is running on this node", http.StatusServiceUnavailable)
			return
		}
		if err := json.NewEncoder(w).Encode(shownBGP()); err != nil {
			t.Error(err)
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	for _, c := range []struct {
		args  []string
		asked string
		says  string
		err   error
	}{
		{[]string{"peers"}, "/bgp", "1 of 2 sessions", errUnhealthy},
		{[]string{"peers", "-o", "json"}, "/bgp", `"Addr": "192.0.2.9"`, errUnhealthy},
		{[]string{"routes", "10.0.0.0/8", "--peer", "192.0.2.9", "--sent"}, "/bgproutes?peer=192.0.2.9&prefix=10.0.0.0%2F8&sent=true", "no BGP process is running", nil},
		{[]string{"neighbor", "192.0.2.9"}, "/bgp?neighbor=192.0.2.9", "", nil},
	} {
		out, err := weir(t, "/nonexistent", "", append([]string{"bgp", "--local=" + dir}, c.args...)...)
		if !errors.Is(err, c.err) || asked != c.asked || !strings.Contains(out, c.says) {
			t.Errorf("%v: %v, asked %s:\n%s", c.args, err, asked, out)
		}
	}
	for _, args := range [][]string{{"peers", "-o", "yaml"}, {"peers", "--node", "n1"}, {"routes", "10.0.0.0/33"}, {"routes", "--peer", "x"}, {"routes", "--sent"}, {"neighbor", "rack-1"}, {"neighbor"}} {
		if out, err := weir(t, "/nonexistent", "", append([]string{"bgp", "--local=" + dir}, args...)...); err == nil || errors.Is(err, errUnhealthy) {
			t.Errorf("%v is taken: %s", args, out)
		}
	}
}

// testStatusOfBGP has nodes with sessions: `weir status` counts them, and names BGPPeers by which
// no node has any.
func testStatusOfBGP(t *testing.T, s *apitest.Server, kubeconfig string) {
	ctx := t.Context()
	statuses := client.NodeStatuses(s.Clients.Dynamic)
	peers := s.Clients.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("bgppeers"))
	put := func(name string, spec map[string]any) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": map[string]any{"name": name}, "spec": spec}}
		if _, err := peers.Create(ctx, u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = peers.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}) })
	}
	now := metav1.Now()
	node := func(name string, b *weirv1.BGPStatus, problems ...weirv1.Problem) {
		t.Helper()
		st := weirv1.NodeStatusStatus{LastHeartbeat: &now, BGP: b, Problems: problems, Conditions: []weirv1.Condition{{Type: weirv1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now}}}
		if err := statuses.Apply(ctx, &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: st}, "weir-agent"); err != nil {
			t.Fatal(err)
		}
	}
	status := func(args ...string) string {
		t.Helper()
		out, err := weir(t, kubeconfig, "", append([]string{"status"}, args...)...)
		if err != nil && !errors.Is(err, errUnhealthy) {
			t.Fatal(err)
		}
		return out
	}
	put("rack-1", map[string]any{"peerIP": "192.0.2.9", "asNumber": int64(64999)})
	put("rack-6", map[string]any{"peerIP": "[2001:db8::9]:1179", "asNumber": int64(64999)})
	put("gone", map[string]any{"node": "n77", "peerIP": "192.0.2.8", "asNumber": int64(64999)})
	put("nobody", map[string]any{"nodeSelector": "rack == '7'", "peerIP": "192.0.2.8", "asNumber": int64(64999)})
	put("refused", map[string]any{"peerIP": "x", "asNumber": int64(64999)})
	used := &weirv1.BGPStatus{Sessions: 2, Established: 1, Objects: []string{"mesh", "rack-1"}}
	node("n1", nil)
	node("n2", nil)
	statusOf := func(name, of string) {
		t.Helper()
		u := apitest.Object("projectcalico.org/v3", "CalicoNodeStatus", name, map[string]any{"node": of, "classes": []any{"BGP"}})
		s.Create(u)
		t.Cleanup(func() {
			_ = s.Clients.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("caliconodestatuses")).Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
		})
	}
	statusOf("routing-1", "n1")
	statusOf("routing-77", "n77")
	const unused, nobody = "CalicoNodeStatus routing-1: is filled while BGP is in use", `CalicoNodeStatus routing-77 spec.node: there is no node "n77"`
	if out := status(); !strings.Contains(out, unused) || !strings.Contains(out, nobody) {
		t.Errorf("a status that nobody fills is not named:\n%s", out)
	}
	if out := status(); strings.Contains(out, "BGP:") || strings.Contains(out, "no node makes a session") {
		t.Errorf("nodes that use no BGP:\n%s", out)
	}
	node("n1", used, weirv1.Problem{Object: "BGPPeer refused", Field: "spec.peerIP", Message: "is no address"})
	if out := status(); !strings.Contains(out, "BGP: 1/2 sessions established") || strings.Contains(out, "no node makes a session") {
		t.Errorf("one node has not said by what it has sessions:\n%s", out)
	}
	node("n2", &weirv1.BGPStatus{Sessions: 1, Established: 1, Objects: []string{"mesh"}})
	out := status()
	if strings.Contains(out, unused) {
		t.Errorf("a status of a node with BGP is named:\n%s", out)
	}
	for _, want := range []string{nobody, "BGP: 2/3 sessions established", "BGPPeer rack-6: no node makes a session by it: its peer is at 2001:db8::9, and no node has an IPv6 address",
		"BGPPeer gone: no node makes a session by it: there is no node n77", "BGPPeer nobody: no node makes a session by it: no node matches nodeSelector rack == '7'"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "BGPPeer rack-1: no") || strings.Contains(out, "BGPPeer refused: no node") {
		t.Errorf("status names a BGPPeer that makes sessions, or one that is refused:\n%s", out)
	}
	if out := status(); !strings.Contains(out, "written just now") {
		t.Errorf("that nodes may not have said so yet is not said:\n%s", out)
	}
	if out := status("--node", "n2"); strings.Contains(out, "no node makes a session") {
		t.Errorf("the status of one node speaks of all:\n%s", out)
	}
	node("n2", nil)
}
