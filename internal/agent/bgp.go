// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/netip"

	"github.com/weir-net/weir/internal/agent/api"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/nodestate"
)

// noteBGP is called with what the node's BGP process should do. Where that is nothing and no
// process is there, what one left behind that was removed too soon is removed here.
func (a *Agent) noteBGP(s *nodestate.BGP) {
	a.bgp.Set(s)
	if s == nil && a.bgp.Status() == nil {
		go func() {
			if err := fib.Remove(); err != nil {
				a.log.Warn("routes that a BGP process learned are left", "error", err)
			}
		}()
	}
}

// BGP is the answer to GET /bgp. Without Desired BGP is not in use, without Status no process runs.
type BGP struct {
	Desired *nodestate.BGP `json:"desired,omitempty"`
	Status  *feed.Status   `json:"status,omitempty"`
}

func (a *Agent) serveBGP(w http.ResponseWriter, _ *http.Request) {
	s := a.cluster.snapshot().state
	if s == nil {
		http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
		return
	}
	api.WriteJSON(w, BGP{Desired: s.BGP, Status: a.bgp.Status()})
}

// serveBGPRoutes answers with a feed.Answer; the query's peer limits it to what one sent.
func (a *Agent) serveBGPRoutes(w http.ResponseWriter, r *http.Request) {
	var peer netip.Addr
	if text := r.URL.Query().Get("peer"); text != "" {
		var err error
		if peer, err = netip.ParseAddr(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	answer, err := a.bgp.Routes(r.Context(), peer)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case answer.Err != "":
		http.Error(w, answer.Err, http.StatusNotFound)
	default:
		api.WriteJSON(w, answer)
	}
}
