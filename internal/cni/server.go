// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/localsock"
)

const (
	maxCalls    = 128 // at a time; others wait in the socket's backlog
	readTimeout = 5 * time.Second
	maxTimeout  = 2 * time.Minute
	undoTimeout = 30 * time.Second
)

// Serve answers calls until ctx ends, and then waits for those in progress.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, maxCalls)
	for {
		slots <- struct{}{}
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept a CNI call: %w", err)
			}
			s.Log.Error("cannot accept a CNI call", "error", err)
			time.Sleep(50 * time.Millisecond) // out of descriptors, or the like
			<-slots
			continue
		}
		calls.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			// A call in progress is finished also when the agent is asked to end: it is short.
			s.serve(context.WithoutCancel(ctx), conn)
		})
	}
}

// serve answers one connection.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	if err := localsock.FromRoot(conn); err != nil {
		s.Log.Warn("refused a CNI call", "reason", err)
		return
	}
	conn.SetReadDeadline(time.Now().Add(readTimeout))
	req, netns, err := wire.ReadRequest(conn)
	if err != nil {
		s.Log.Warn("a CNI call cannot be read", "error", err)
		_ = s.answer(conn, wire.Response{Error: refusal(wire.CodeDecode, "the request cannot be read: %v", err)})
		return
	}
	if netns != nil {
		defer netns.Close()
	}
	timeout := min(max(time.Duration(req.Timeout)*time.Millisecond, time.Second), maxTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn.SetReadDeadline(time.Time{})
	watching := make(chan struct{})
	go func() { // a caller that is gone does not need the rest
		defer close(watching)
		var one [1]byte
		_, _ = conn.Read(one[:])
		cancel()
	}()
	begin := time.Now()
	result, undo, failure := s.Handle(ctx, req, netns)
	err = s.answer(conn, wire.Response{Result: result, Error: failure})
	if err != nil && undo != nil {
		s.Log.Warn("the caller of an ADD is gone: undoing it", "container", req.ContainerID, "error", err)
		undo()
	}
	s.note(req, failure, time.Since(begin))
	conn.Close()
	<-watching
}

func (s *Server) answer(conn *net.UnixConn, r wire.Response) error {
	r.Version = wire.Version
	conn.SetWriteDeadline(time.Now().Add(readTimeout))
	return wire.Write(conn, r, nil)
}

func (s *Server) note(req wire.Request, failure *wire.Error, took time.Duration) {
	attrs := []any{"command", req.Command, "container", req.ContainerID, "ifname", req.IfName,
		"pod", req.Namespace + "/" + req.Pod, "took", took}
	if failure != nil {
		s.Log.Error("CNI call failed", append(attrs, "code", failure.Code, "error", failure.Message)...)
		return
	}
	s.Log.Info("CNI call", attrs...)
}

// Handle answers one request; netns is the pod's network namespace where the command needs one.
// undo is not nil after an ADD: it takes back what the ADD did when the answer cannot be delivered.
func (s *Server) Handle(ctx context.Context, req wire.Request, netns *os.File) (result *wire.Result, undo func(), failure *wire.Error) {
	if req.Version != wire.Version {
		return nil, nil, refusal(wire.CodeTryAgain, "the plugin speaks version %d of the protocol, the agent version %d: one of them is being upgraded", req.Version, wire.Version)
	}
	if failure := validate(req, netns); failure != nil {
		return nil, nil, failure
	}
	switch req.Command {
	case "ADD":
		res, undo, err := s.add(ctx, req, netns)
		if err != nil {
			return nil, nil, asWire(err, wire.CodeInterface)
		}
		return res, undo, nil
	case "DEL":
		if err := s.del(ctx, req); err != nil {
			failure = asWire(err, wire.CodeInterface)
		}
	case "CHECK":
		if err := s.check(ctx, req, netns); err != nil {
			failure = asWire(err, wire.CodeInterface)
		}
	case "GC":
		if err := s.gc(ctx, req); err != nil {
			failure = asWire(err, wire.CodeInterface)
		}
	case "STATUS":
		failure = s.status()
	}
	return nil, nil, failure
}

func (s *Server) status() *wire.Error {
	err := s.Ready()
	var limited *LimitedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &limited):
		return refusal(wire.CodeLimited, "weir-agent is not ready, and pods may lack connectivity: %v", err)
	}
	return refusal(wire.CodeNotAvailable, "weir-agent is not ready: %v", err)
}
