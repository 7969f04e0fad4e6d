// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/sleep"
)

// Process is the end of the BGP process.
type Process struct {
	Socket string
	Log    *slog.Logger
	// Apply gets what should be; Status and Answer say how it is. They are called by different
	// goroutines.
	Apply  func(Desired)
	Status func() Status
	Answer func(Ask) Answer
	// Every is about the time between two looks whether the status is another one; 0 = a second.
	Every time.Duration
}

// retry is how long to wait before the agent is called again.
const retry = 500 * time.Millisecond

// Run talks to the agent until ctx ends, whenever there is one.
func (p *Process) Run(ctx context.Context) error {
	away := false
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", p.Socket)
		if err == nil {
			p.Log.Info("the agent is there")
			err = p.talk(ctx, conn)
			away = false
		}
		if ctx.Err() != nil {
			return nil
		}
		if !away {
			away = true
			p.Log.Info("the agent is away; going on with what is known", "err", err)
		}
		if sleep.For(ctx, retry) != nil {
			return nil
		}
	}
}

// talk talks until the connection ends.
func (p *Process) talk(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	var mu sync.Mutex
	enc := json.NewEncoder(conn)
	send := func(m ToAgent) error {
		mu.Lock()
		defer mu.Unlock()
		if err := conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		return enc.Encode(m)
	}
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer cancel()
	reporting.Go(func() {
		every := p.Every
		if every == 0 {
			every = time.Second
		}
		var last *Status
		for {
			if now := p.Status(); last == nil || !reflect.DeepEqual(*last, now) {
				if send(ToAgent{Status: &now}) != nil {
					conn.Close()
					return
				}
				last = &now
			}
			if sleep.For(ctx, every) != nil {
				return
			}
		}
	})
	dec := json.NewDecoder(conn)
	for {
		var m ToProcess
		if err := dec.Decode(&m); err != nil {
			return err
		}
		if m.Desired != nil {
			p.Apply(*m.Desired)
		}
		if m.Ask != nil {
			a := p.Answer(*m.Ask)
			a.ID = m.Ask.ID
			if err := send(ToAgent{Answer: &a}); err != nil {
				return err
			}
		}
	}
}
