// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

// TestChanges plays an API server and a data plane: what is written takes effect in this process.
func TestChanges(t *testing.T) {
	pause = time.Millisecond
	a, b := serve(t, "127.0.0.1"), serve(t, "127.0.0.2")
	// What has the role of the cluster IP: it forwards to the backend that was written last, or
	// refuses.
	var backend atomic.Pointer[string]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := net.Dial("tcp", *backend.Load())
				if err != nil {
					return
				}
				defer to.Close()
				go io.Copy(to, c)
				io.Copy(c, to)
			}()
		}
	}()
	var writes, pods atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer account" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		var body struct {
			Endpoints []struct{ Addresses []string }
			Metadata  struct{ Name string }
			Spec      struct {
				Ingress    []any
				Containers []struct {
					Env []struct{ Name, Value string }
				}
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		writes.Add(1)
		switch r.Method + " " + r.URL.Path {
		case "PATCH /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/moving":
			to := a.To.String()
			if body.Endpoints[0].Addresses[0] == b.To.Addr().String() {
				to = b.To.String()
			}
			backend.Store(&to)
		case "POST /api/v1/namespaces/ns/pods":
			pods.Add(1)
			env := body.Spec.Containers[0].Env
			go Hello(t.Context(), env[0].Value, env[1].Value)
		default:
			if !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/ns/pods/started-") || r.Method != http.MethodDelete {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			pods.Add(-1)
		}
		w.Write([]byte("{}"))
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	to := &api{base: server.URL, token: "account", http: server.Client()}
	client := &Client{Token: testToken}
	s := Spec{Test: Endpoint, To: l.Addr().(*net.TCPAddr).AddrPort(), Direct: a.To, Count: 3, Patience: await.Patience, Control: &Control{Namespace: "ns", Name: "moving",
		Backends: map[string]netip.Addr{"here": a.To.Addr(), "there": b.To.Addr()}}}
	start := a.To.String()
	backend.Store(&start)
	// The second server has another name than the first, which both have from serve: so ask for one
	// that is not there.
	ctx, cancel := context.WithCancel(t.Context())
	other := &Server{At: netip.MustParseAddr("127.0.0.3"), Token: testToken, Name: "there"}
	up := make(chan Listening, 1)
	ended := make(chan error, 1)
	go func() { ended <- other.Run(ctx, func(l Listening) { up <- l }) }()
	defer func() { cancel(); <-ended }()
	at := <-up
	b.To = at.To
	s.Control.Backends["there"] = at.To.Addr()
	r, err := client.changes(t.Context(), to, s)
	if err != nil || r.Operations != 3 || r.Latency.Count != 3 || writes.Load() != 4 {
		t.Errorf("endpoints: %+v, %d writes, %v", r, writes.Load(), err)
	}

	s = Spec{Test: PodStart, To: a.To, Direct: a.To, UDP: netip.MustParseAddrPort("127.0.0.1:0"), Count: 2, Patience: await.Patience,
		Control: &Control{Namespace: "ns", Name: "started-", Pod: []byte(`{"metadata":{},"spec":{"containers":[{"name":"x"}]}}`)}}
	r, err = client.changes(t.Context(), to, s)
	if err != nil || r.Operations != 2 || r.Inner == nil || r.Inner.P50 > r.Latency.Max || pods.Load() != 0 {
		t.Errorf("pods: %+v, %d left, %v", r, pods.Load(), err)
	}

	s.Test, s.Control.Name = Policy, "unknown"
	if _, err := client.changes(t.Context(), to, s); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a write that is refused: %v", err)
	}
	if _, err := client.control(t.Context(), s); err == nil || !strings.Contains(err.Error(), "not a pod") {
		t.Errorf("outside of a pod: %v", err)
	}
}

// TestPolicyChanges: the policy's effect is that the server listens or does not.
func TestPolicyChanges(t *testing.T) {
	pause = time.Millisecond
	direct := serve(t, "127.0.0.1")
	l, err := net.Listen("tcp", "127.0.0.4:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	var open atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Spec struct{ Ingress []any } }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if len(body.Spec.Ingress) == 0 {
			l.Close()
		} else {
			open.Add(1)
			if l, err = net.Listen("tcp", at.String()); err != nil {
				t.Error(err)
			}
		}
		w.Write([]byte("{}"))
	}))
	defer server.Close()
	defer func() { l.Close() }()
	s := Spec{Test: Policy, To: at, Direct: direct.To, Count: 2, Patience: await.Patience, Control: &Control{Namespace: "ns", Name: "p"}}
	r, err := (&Client{Token: testToken}).changes(t.Context(), &api{base: server.URL, http: server.Client()}, s)
	if err != nil || r.Operations != 2 || open.Load() != 2 {
		t.Errorf("%+v, opened %d times, %v", r, open.Load(), err)
	}
}
