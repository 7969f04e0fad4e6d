// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// apiProxy is where the specs find the API server: a spec that restarts it takes a refused
	// connection for a failure of its own, and a load balancer in front of API servers does not
	// refuse either.
	apiProxy = "127.0.0.1:6443"
	// patience is how long a connection waits for the API server.
	patience = 2 * time.Minute
)

// serveAPI hands connections on to the API server, and lets them wait while there is none.
func serveAPI(ctx context.Context, listen, target string, patience time.Duration, ready func(addr string)) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listening for connections to the API server: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	ready(l.Addr().String())
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		all.Go(func() { handOn(ctx, c, target, patience) })
	}
}

func handOn(ctx context.Context, c net.Conn, target string, patience time.Duration) {
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	server := dialUntil(ctx, target)
	cancel()
	if server == nil {
		return
	}
	defer server.Close()
	// Whichever side ends first, the other has to see it.
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, server}, {server, c}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			c.Close()
			server.Close()
		})
	}
	both.Wait()
}

// dialUntil connects as soon as somebody listens; nil when ctx ends before.
func dialUntil(ctx context.Context, target string) net.Conn {
	d := net.Dialer{Timeout: 2 * time.Second}
	for ctx.Err() == nil {
		if c, err := d.DialContext(ctx, "tcp", target); err == nil {
			return c
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}
