// SPDX-License-Identifier: Apache-2.0

// Package api serves the API of a node's agent (package agentapi is its client): a set of handlers
// that the agent brings, at a socket of the node, for root and for programs in the agent's pod; by
// connections to the controller (package tunnel), for users who have the right to ask by the API
// server; and to the store of flow records. Bodies, and requests at a time, are bounded. An answer
// that goes on for long ends with its request's context.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/localsock"
)

// WriteJSON answers with a value.
func WriteJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // who asked may have gone
}

// NewMux serves questions, each with a body of limited size, and marks those that it does not know.
func NewMux(questions map[string]http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range questions {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, wire.MaxBody)
			handler(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.UnknownQuestion, "true")
		http.Error(w, fmt.Sprintf("no such question: %s %s", r.Method, r.URL.Path), http.StatusNotFound)
	})
	return mux
}

// maxRequests bounds the questions that are answered at a time; others are refused.
const maxRequests = 32

// Bounded answers as many questions at a time as it may.
func Bounded(handler http.Handler) http.Handler {
	slots := make(chan struct{}, maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			handler.ServeHTTP(w, r)
		default:
			http.Error(w, "the agent is answering as many questions as it can; try again", http.StatusTooManyRequests)
		}
	})
}

// ServeSocket serves a socket until ctx ends.
func ServeSocket(ctx context.Context, socket string, handler http.Handler) error {
	l, err := localsock.Listen(socket)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 1 << 14, Handler: Bounded(handler)}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); ctx.Err() == nil || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", socket, err)
	}
	return nil
}
