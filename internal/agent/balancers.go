package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/agent/httpserve"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Load balancers ask nodes over HTTP, without encryption, on the nodes' addresses: that is kube-proxy's contract.
// What they are told is a number of endpoints and the time.

// staleAfter is how late a state may be before the node is no good to load balancers (kube-proxy: twice its sync period).
const staleAfter = 60 * time.Second

// healthy says why load balancers should turn away, whatever becomes of the Node. While the agent starts the data
// plane of the one before goes on.
func (a *Agent) healthy() error {
	if late := a.loop.Stale(); late > staleAfter {
		return fmt.Errorf("the node's state has been waiting for %s", late.Round(time.Second))
	}
	return a.alive()
}

// serveBalancers answers load balancers about this node and about single Services, until ctx ends.
func (a *Agent) serveBalancers(ctx context.Context) error {
	node := &httpserve.Listener{What: "health of the node, for load balancers", Log: a.log}
	defer node.Close()
	mode := &httpserve.Listener{What: "proxy mode, for programs of this node", Log: a.log}
	defer mode.Close()
	services := newServiceChecks(a.log, func() bool { return a.healthy() == nil })
	a.serviceChecks.Store(services)
	defer services.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	handler := healthzHandler(func() (error, bool) { return a.healthy(), !a.cluster.snapshot().leaving }, time.Now)
	for {
		snap := a.cluster.snapshot()
		want, wantMode := "", ""
		beside := a.cluster.servicesBy()
		beside.Proxy = beside.Proxy || beside.Seen != "" // one that begins has to find its ports free
		if p := snap.config.HealthzPort; p != 0 && !beside.Proxy {
			want, wantMode = httpserve.HostPort("", p), modeAddr
		}
		node.Ensure(want, handler)
		mode.Ensure(wantMode, http.HandlerFunc(proxyMode))
		switch {
		case snap.state == nil:
		case beside.Proxy:
			services.update(nodestate.New(), nil)
		default:
			services.update(snap.state, checkAddrs(snap.state, snap.config.Settings.NodePorts))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.checksDue:
		case <-tick.C:
		}
	}
}

// modeAddr is where kube-proxy says which of its ways it goes; programs on a node ask there who carries Services.
const modeAddr = "127.0.0.1:10249"

// proxyMode is none of kube-proxy's (iptables, ipvs, nftables), so nobody takes this for one of them.
func proxyMode(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/proxyMode" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte("weir")) // whoever asked may be gone
}

// healthzHandler answers as kube-proxy does: /healthz is for load balancers, and fails on a node that is about to go;
// /livez does not. state says what is wrong, and whether the node stays.
func healthzHandler(state func() (err error, stays bool), now func() time.Time) http.Handler {
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

// checkAddrs returns where health checks listen: where node ports answer, as kube-proxy does.
func checkAddrs(s *nodestate.State, at model.NodePortAddresses) []string {
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
