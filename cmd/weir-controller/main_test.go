package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

// The second instance on a node serves as soon as the first one has ended, and ends when it is closed.
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
	time.Sleep(listenRetry / 4) // it has met the first one, or will: either is fine
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
