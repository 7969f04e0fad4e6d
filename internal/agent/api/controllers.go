// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// ServeControllers keeps a connection to each instance of the controller, by which users with the
// right to do so ask this agent, until ctx ends. addrs returns the addresses of the instances
// themselves: no Service is in the path.
func ServeControllers(ctx context.Context, folder trust.Folder, questions http.Handler, addrs func() []string, log *slog.Logger) error {
	handler := controllerMux(folder, questions)
	connected := map[string]context.CancelFunc{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		there := map[string]bool{}
		for _, addr := range addrs() {
			there[addr] = true
			if connected[addr] == nil {
				one, cancel := context.WithCancel(ctx)
				connected[addr] = cancel
				go (&controllerLink{addr: addr, folder: folder, handler: handler, log: log, retry: time.Second}).keep(one)
			}
		}
		for addr, cancel := range connected {
			if !there[addr] {
				cancel()
				delete(connected, addr)
			}
		}
		select {
		case <-ctx.Done():
			for _, cancel := range connected {
				cancel()
			}
			return nil
		case <-tick.C:
		}
	}
}

// controllerMux are those of users, and the one for the token.
func controllerMux(folder trust.Folder, questions http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+tunnel.TokenPath, func(w http.ResponseWriter, _ *http.Request) {
		token, err := folder.Token()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(token)) // who asked may have gone
	})
	mux.Handle("/", bounded(questions))
	return mux
}

// controllerLink is the connection to one instance of the controller.
type controllerLink struct {
	addr    string
	folder  trust.Folder
	handler http.Handler
	log     *slog.Logger
	retry   time.Duration // the first time between two attempts; it grows
}

// maxControllerRetry bounds the time between two attempts.
const maxControllerRetry = 30 * time.Second

// keep connects again and again until ctx ends.
func (l *controllerLink) keep(ctx context.Context) {
	said := ""
	for wait := l.retry; ctx.Err() == nil; {
		began := time.Now()
		err := tunnel.Answer(ctx, &net.Dialer{Control: kernel.MarkOwn}, l.addr, l.folder, l.handler)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > maxControllerRetry {
			wait, said = l.retry, "" // it was connected
		} else if said != err.Error() {
			said = err.Error()
			l.log.Info("no connection to the controller; trying again", "address", l.addr, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)): // not all nodes at once
		}
		wait = min(2*wait, maxControllerRetry)
	}
}
