// SPDX-License-Identifier: Apache-2.0

// Package lbhealth answers load balancers over HTTP as kube-proxy does: about the node (/healthz,
// and /livez, which a node that is about to go still passes), and about each Service with a
// healthCheckNodePort: whether endpoints of it are on this node. They ask without encryption, at
// the nodes' addresses; what they get to know is a number of endpoints and the time. Tenants choose
// the ports of Services, so what all of them together may take is bounded, and a port that a
// process of the host has, or had a minute ago, is not taken.
package lbhealth

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ProxyModeAddr is where kube-proxy reports its mode; programs on a node ask there who carries
// Services.
const ProxyModeAddr = "127.0.0.1:10249"

// ProxyMode is none of kube-proxy's (iptables, ipvs, nftables), so nobody takes this for one of
// them.
func ProxyMode(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/proxyMode" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte("weir")) // whoever asked may be gone
}

// NodeHandler answers as kube-proxy does: /healthz is for load balancers, and fails on a node that
// is about to go; /livez does not. state says what is wrong, and whether the node stays.
func NodeHandler(state func() (err error, stays bool), now func() time.Time) http.Handler {
	var mu sync.Mutex
	updated := now() // when all was well last
	answer := func(w http.ResponseWriter, ofNode bool) {
		err, stays := state()
		at := now().Round(0)
		mu.Lock()
		if err == nil {
			updated = at
		}
		body := map[string]any{"lastUpdated": updated.Round(0).String(), "currentTime": at.String()}
		mu.Unlock()
		if ofNode {
			body["nodeEligible"] = stays
		}
		writeJSON(w, err == nil && (stays || !ofNode), body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, true) })
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, false) })
	return mux
}

func writeJSON(w http.ResponseWriter, ok bool, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // whoever asked may be gone
}

// ServiceAddrs returns where health checks listen: where node ports answer, as kube-proxy does.
func ServiceAddrs(s *nodestate.State, at model.NodePortAddresses) []string {
	if !at.Primary && len(at.CIDRs) == 0 {
		return []string{""}
	}
	var out []string
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrHost && v.NodePorts {
			out = append(out, a.String())
		}
	}
	slices.Sort(out)
	return out
}
