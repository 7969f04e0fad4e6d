// SPDX-License-Identifier: Apache-2.0

// Package bgp is what an agent says of its node's BGP: to who asks the agent, in the node's
// NodeStatus and in metrics.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/api"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/nodestate"
)

// Process is the node's BGP process; *feed.Agent is one.
type Process interface {
	Status() *feed.Status
	Ask(context.Context, feed.Ask) (feed.Answer, error)
}

// Server answers questions about BGP.
type Server struct {
	Process Process
	// State returns the node's state; nil = it is not known yet.
	State func() *nodestate.State
}

// askWithin bounds a question to the process.
const askWithin = 15 * time.Second

func (s *Server) ask(w http.ResponseWriter, r *http.Request, q feed.Ask) (feed.Answer, bool) {
	ctx, cancel := context.WithTimeout(r.Context(), askWithin)
	defer cancel()
	answer, err := s.Process.Ask(ctx, q)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		http.Error(w, fmt.Sprintf("the node's BGP process does not answer within %s", askWithin), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case answer.Err != "":
		http.Error(w, answer.Err, http.StatusNotFound)
	default:
		return answer, true
	}
	return answer, false
}

// ServePeers answers with a feed.Shown: that of GET /bgp. The query's neighbor asks for one session
// in full, besides.
func (s *Server) ServePeers(w http.ResponseWriter, r *http.Request) {
	state := s.State()
	if state == nil {
		http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
		return
	}
	out := feed.Shown{Desired: state.BGP, Status: s.Process.Status()}
	if text := r.URL.Query().Get("neighbor"); text != "" {
		peer, err := netip.ParseAddr(text)
		if err != nil {
			http.Error(w, fmt.Sprintf("neighbor %q is no address", text), http.StatusBadRequest)
			return
		}
		answer, ok := s.ask(w, r, feed.Ask{Neighbour: peer.Unmap()})
		if !ok {
			return
		}
		if answer.Neighbour == nil {
			http.Error(w, "the node's BGP process is of a version that does not know this question; it is replaced by the DaemonSet weir-bgp", http.StatusServiceUnavailable)
			return
		}
		out.Neighbour = answer.Neighbour
	}
	api.WriteJSON(w, out)
}

// ServeRoutes answers with a feed.Answer. The query's peer limits it to what one sent, or with sent
// to what is sent to it; its prefix to what is in a prefix, or leads to an address.
func (s *Server) ServeRoutes(w http.ResponseWriter, r *http.Request) {
	q, err := ParseAsk(r.URL.Query().Get("peer"), r.URL.Query().Get("sent"), r.URL.Query().Get("prefix"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if answer, ok := s.ask(w, r, q); ok {
		api.WriteJSON(w, answer)
	}
}

// ParseAsk reads which routes are asked for.
func ParseAsk(peer, sent, prefix string) (feed.Ask, error) {
	var q feed.Ask
	if peer != "" {
		a, err := netip.ParseAddr(peer)
		if err != nil {
			return q, fmt.Errorf("peer %q is no address", peer)
		}
		q.Peer = a.Unmap()
	}
	switch {
	case sent != "" && sent != "true":
		return q, fmt.Errorf("sent is %q: true, or nothing", sent)
	case sent != "" && peer == "":
		return q, errors.New("routes that are sent are those of one peer: name it")
	}
	q.Sent = sent != ""
	if prefix == "" {
		return q, nil
	}
	if a, err := netip.ParseAddr(prefix); err == nil && a.Zone() == "" {
		a = a.Unmap()
		q.Prefix, q.Covering = netip.PrefixFrom(a, a.BitLen()), true
		return q, nil
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return q, fmt.Errorf("%q is neither a prefix nor an address", prefix)
	}
	q.Prefix = p.Masked()
	return q, nil
}

// maxObjects bounds the objects that a NodeStatus names.
const maxObjects = 100

// Complete reports whether all sessions have come to be established, for which a change of the
// node from another network plugin waits. One that ends waits for the heartbeat, as it is one at
// each node when a node restarts.
func Complete(before, now *weirv1.BGPStatus) bool {
	if now == nil || now.Established < now.Sessions {
		return false
	}
	return before == nil || before.Established < before.Sessions
}

// NodeStatus is what the node's NodeStatus says of BGP; nil while it is not in use.
func NodeStatus(s *nodestate.State, st *feed.Status) *weirv1.BGPStatus {
	if s == nil || s.BGP == nil {
		return nil
	}
	out := &weirv1.BGPStatus{Sessions: int32(len(s.BGP.Peers))}
	objects := map[string]bool{}
	for _, p := range s.BGP.Peers {
		object, _, _ := strings.Cut(p.Name, " ") // the rest is the node that is the peer
		objects[object] = true
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if len(out.Objects) == maxObjects {
			break
		}
		out.Objects = append(out.Objects, name)
	}
	if st != nil {
		_, established := st.Count()
		out.Established = int32(established)
		out.LearnedRoutes, out.InstalledRoutes = int32(st.Routes.Learned), int32(st.Routes.Installed)
	}
	return out
}
