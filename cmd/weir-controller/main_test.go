// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/httplimit"
)

// The second instance on a node serves as soon as the first one has ended, and ends when it is
// closed.
func TestHealthIsServedInTurn(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := first.Addr().String()
	second := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "second") })}
	done := make(chan struct{})
	go func() {
		serveHealth(t.Context(), addr, second)
		close(done)
	}()
	time.Sleep(250 * time.Millisecond) // it has met the first one, or will: either is fine
	first.Close()
	await.Within(t, 10*time.Second, "the second instance", func() error {
		resp, err := http.Get("http://" + addr)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); string(body) != "second" {
			return fmt.Errorf("got %q", body)
		}
		return nil
	})
	second.Close()
	<-done
}

// The controller's port for health is bounded where it is opened.
func TestHostileIdleConnectionsOfController(t *testing.T) {
	hostile.Record(t, "idle connections to the controller's port for health, where it opens it", hostile.Pod, hostile.ControlPlane, hostile.IPv4)
	server, addr, done := httplimit.NewServer(http.NotFoundHandler()), hostile.FreeTCP(t), make(chan struct{})
	go func() {
		serveHealth(t.Context(), addr, server)
		close(done)
	}()
	await.Within(t, time.Minute, "the port", func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	})
	if n := hostile.Refused(t, "127.0.0.2", addr, 10*httplimit.DefaultPerSource); n < httplimit.DefaultPerSource {
		t.Errorf("%d of %d idle connections of one caller were refused", n, 10*httplimit.DefaultPerSource)
	}
	server.Close()
	<-done
}
