// SPDX-License-Identifier: Apache-2.0

package lbhealth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func healthState(checks map[model.Name]nodestate.HealthCheck) *nodestate.State {
	s := nodestate.New()
	s.HealthChecks = nodestate.MapOf(checks)
	return s
}

func TestServiceChecks(t *testing.T) {
	healthy := true
	c := NewServiceChecks(slog.New(slog.DiscardHandler), func() bool { return healthy })
	defer c.Close()
	at := map[string]net.Addr{} // by what was asked for
	refuse := map[string]bool{}
	c.listen = func(addr string) (net.Listener, error) {
		if refuse[addr] {
			return nil, errors.New("in use")
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			at[addr] = ln.Addr()
		}
		return ln, err
	}
	web, api := model.Name{Namespace: "default", Name: "web"}, model.Name{Namespace: "default", Name: "api"}
	check := func(addr string, status int, weight, body string) {
		t.Helper()
		resp, err := http.Get(fmt.Sprintf("http://%s/anything", at[addr]))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status || resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != weight || string(text) != body+"\n" {
			t.Errorf("%s: %d weight %q %s", addr, resp.StatusCode, resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), text)
		}
	}
	c.Update(healthState(map[model.Name]nodestate.HealthCheck{web: {Port: 31000, Local: 2}, api: {Port: 31001}}), []string{""})
	check(":31000", 200, "2", `{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`)
	check(":31001", 503, "0", `{"service":{"namespace":"default","name":"api"},"localEndpoints":0,"serviceProxyHealthy":true}`)
	healthy = false
	check(":31000", 503, "2", `{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":false}`)
	healthy = true

	before := at[":31000"]
	refuse[":31002"] = true
	next := healthState(map[model.Name]nodestate.HealthCheck{web: {Port: 31000, Local: 1}, api: {Port: 31002, Local: 1}})
	c.Update(next, []string{""})
	if at[":31000"] != before {
		t.Error("a new number of endpoints opened the port anew")
	}
	check(":31000", 200, "1", `{"service":{"namespace":"default","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`)
	if conn, err := net.Dial("tcp", at[":31001"].String()); err == nil {
		conn.Close()
		t.Error("a port that is no Service's any more is open")
	}
	refuse[":31002"] = false
	c.Update(next, []string{""})
	check(":31002", 200, "1", `{"service":{"namespace":"default","name":"api"},"localEndpoints":1,"serviceProxyHealthy":true}`)
	c.Update(next, []string{"192.0.2.1", "2001:db8::1"})
	check("192.0.2.1:31000", 200, "1", `{"service":{"namespace":"default","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`)
	if len(c.open) != 4 || at["[2001:db8::1]:31002"] == nil {
		t.Errorf("open: %v", at)
	}
	c.Update(healthState(nil), []string{""})
	if len(c.open) != 0 {
		t.Errorf("%d ports are open for nobody", len(c.open))
	}
}

func TestHealthz(t *testing.T) {
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	var wrong error
	stays := true
	h := NodeHandler(func() (error, bool) { return wrong, stays }, func() time.Time { return now })
	for _, step := range []struct {
		name           string
		err            error
		stays          bool
		healthz, livez int
		updated        int // seconds
	}{
		{"well", nil, true, 200, 200, 10},
		{"about to go", nil, false, 503, 200, 20},
		{"stale", errors.New("late"), true, 503, 503, 20},
		{"well again", nil, true, 200, 200, 40},
	} {
		now = now.Add(10 * time.Second)
		wrong, stays = step.err, step.stays
		for path, want := range map[string]int{"/healthz": step.healthz, "/livez": step.livez} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			var body map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
				t.Fatalf("%s: %s: %v", step.name, w.Body, err)
			}
			eligible, said := body["nodeEligible"]
			if w.Code != want || said != (path == "/healthz") || said && eligible != step.stays {
				t.Errorf("%s: %s is %d %v", step.name, path, w.Code, body)
			}
			at := time.Date(2026, 11, 21, 8, 0, step.updated, 0, time.UTC)
			if body["lastUpdated"] != at.String() || body["currentTime"] != now.String() {
				t.Errorf("%s: %v", step.name, body)
			}
		}
	}
}

func TestCheckAddrs(t *testing.T) {
	s := nodestate.New()
	for a, v := range map[string]nodestate.Addr{"10.0.0.1": {Kind: nodestate.AddrHost, NodePorts: true},
		"10.0.0.2": {Kind: nodestate.AddrHost}, "10.0.0.3": {Kind: nodestate.AddrNode, NodePorts: true}} {
		s.Addrs[netip.MustParseAddr(a)] = v
	}
	if got := ServiceAddrs(s, model.NodePortAddresses{}); len(got) != 1 || got[0] != "" {
		t.Errorf("everywhere: %q", got)
	}
	if got := ServiceAddrs(s, model.NodePortAddresses{Primary: true}); len(got) != 1 || got[0] != "10.0.0.1" {
		t.Errorf("primary: %q", got)
	}
}

func TestProxyMode(t *testing.T) {
	for path, want := range map[string]int{"/proxyMode": http.StatusOK, "/metrics": http.StatusNotFound, "/": http.StatusNotFound} {
		w := httptest.NewRecorder()
		ProxyMode(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want || want == http.StatusOK && w.Body.String() != "weir" {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
}
