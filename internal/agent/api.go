// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"path/filepath"
	"time"

	"github.com/weir-net/weir/internal/agent/api"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/version"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// apiHandlers are what an agent answers to who is root on its node, may run programs in its pod, or
// has the right to ask by the API server (package relay): the handlers by the pattern of their
// path. An answer that goes on for long ends with its request's context.
func (a *Agent) apiHandlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /version":            a.serveVersion,
		"GET " + events.Path:      a.serveEvents,
		"GET /status":             a.serveStatus,
		"GET " + ipam.RecordsPath: a.serveRecords,
		"POST " + whywire.Path:    a.why.ServeHTTP,
		"GET /bgp":                a.serveBGP,
		"GET /bgp/routes":         a.serveBGPRoutes,
	}
}

// Version is the answer to GET /version.
type Version struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Kernel  string    `json:"kernel"`
	Began   time.Time `json:"began"`
	Epoch   uint32    `json:"epoch"` // of flows: moves on when existing ones are to be evaluated again
}

func (a *Agent) serveVersion(w http.ResponseWriter, _ *http.Request) {
	api.WriteJSON(w, Version{Version: version.Version, Node: a.opts.Node, Kernel: kernel.Release(), Began: a.started.UTC().Truncate(time.Second), Epoch: a.driver.Status().Epoch})
}

// serveStatus reports the node's status as it is now: a weirv1.NodeStatusStatus.
func (a *Agent) serveStatus(w http.ResponseWriter, _ *http.Request) {
	if a.cluster.snapshot().state == nil {
		http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
		return
	}
	api.WriteJSON(w, a.status(nil))
}

// serveRecords says which addresses the node has given, as its files have it: an ipam.NodeRecords.
func (a *Agent) serveRecords(w http.ResponseWriter, _ *http.Request) {
	has, err := ipam.ReadDir(filepath.Join(a.opts.StateDir, ipamDir))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	api.WriteJSON(w, has)
}
