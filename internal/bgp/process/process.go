// SPDX-License-Identifier: Apache-2.0

// Package process is the BGP process of a node: it follows what the agent says, keeps that on disk
// for when it starts while the agent is away, reads the passwords of sessions, and has the speaker
// and the table of learned routes do the rest.
package process

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/bgp/speaker"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sleep"
)

// Options are what a process needs.
type Options struct {
	Log              *slog.Logger
	Socket, StateDir string
	SecretsURL       string // empty: no passwords are read
	AccountDir       string
	Every            time.Duration // between two looks at passwords; 0 = a minute
}

// softLimit is from how many bytes on the collector of garbage works more.
const softLimit = 32 << 20

// By how much the heap may grow between two cycles of the collector of garbage, percent of what
// lives: while routes arrive, and when their number has come to rest, and what is said of them is
// all that leaves garbage.
const growthBusy, growthAtRest = 50, 10

// rest is how long the number of routes has to stay the same for memory to be given back.
const rest = 5 * time.Second

// saved is what is kept on disk, readable by root alone: passwords are in it.
type saved struct {
	// Boot is the kernel's boot: after another one nothing of the process before is there.
	Boot      string
	State     *nodestate.BGP
	Passwords map[string]string `json:",omitempty"` // by Secret and key
}

// Run works until ctx ends. Learned routes stay in the kernel.
func Run(ctx context.Context, o Options) error {
	// Routes are many small objects: less memory for some more work, and what comes at once when
	// sessions begin leaves no garbage beyond the limit.
	debug.SetGCPercent(growthBusy)
	debug.SetMemoryLimit(softLimit)
	file := statefile.New[saved](filepath.Join(o.StateDir, "state.json"), o.Log)
	known := file.Load()
	boot := bootID()
	restoring := known.State != nil && known.Boot == boot
	table := fib.New(o.Log)
	secrets := newSecrets(o, known.Passwords)
	sp := speaker.New(speaker.Config{Log: o.Log, Table: table, Password: secrets.get, Restoring: restoring})

	desired, changed := make(chan *nodestate.BGP, 1), make(chan struct{}, 1)
	secrets.changed = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return table.Run(ctx) })
	g.Go(func() error { return tidy(ctx, table, o.Log) })
	g.Go(func() error { return secrets.run(ctx) })
	g.Go(func() error {
		p := feed.Process{Socket: o.Socket, Log: o.Log, Status: sp.Status, Answer: sp.Answer, Apply: func(d feed.Desired) {
			select { // an older one that nobody has taken yet does not matter any more
			case <-desired:
			default:
			}
			desired <- d.State
		}}
		return p.Run(ctx)
	})
	g.Go(func() error {
		state := known.State
		begun := restoring
		apply := func() {
			if !begun {
				begun = true
				first(sp, table, o.Log)
			}
			secrets.need(keysOf(state))
			if err := sp.Apply(ctx, state); err != nil && ctx.Err() == nil {
				o.Log.Error("not all of BGP is in force", "error", err)
			}
			// A failure is reported by the file itself.
			_ = file.Save(saved{Boot: boot, State: state, Passwords: secrets.all()})
		}
		if state != nil {
			apply()
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case state = <-desired:
			case <-changed:
			}
			apply()
		}
	})
	return g.Wait()
}

// first is called before the first state where no process is known to have been before. By then the
// agent has made what another BGP program of this node left routes of a process before.
func first(sp *speaker.Speaker, table *fib.Table, log *slog.Logger) {
	left, err := fib.Left()
	if err != nil {
		log.Warn("cannot look for routes that were learned before", "error", err)
	}
	if left {
		sp.Restore()
		return
	}
	table.Settle()
}

// tidy gives back to the kernel what only the start and the arrival of routes needed, of the heap
// and of the program, when the number of routes has come to rest.
func tidy(ctx context.Context, table *fib.Table, log *slog.Logger) error {
	before, tidied := -1, -1
	for sleep.For(ctx, rest) == nil {
		now := table.Status().Learned
		resting := now == before
		before = now
		if change := max(now-tidied, tidied-now); tidied >= 0 && change <= tidied/10+100 {
			continue
		}
		if !resting {
			debug.SetGCPercent(growthBusy)
			continue
		}
		tidied = now
		debug.SetGCPercent(growthAtRest)
		debug.FreeOSMemory()
		if err := kernel.ForgetProgramPages(); err != nil {
			log.Debug("pages of the program stay in memory", "error", err)
		}
	}
	return nil
}

// keysOf are those whose passwords are needed.
func keysOf(s *nodestate.BGP) map[model.SecretKey]bool {
	out := map[model.SecretKey]bool{}
	if s == nil {
		return out
	}
	for _, p := range s.Peers {
		if p.Password != (model.SecretKey{}) {
			out[p.Password] = true
		}
	}
	return out
}

// bootID is another one after each boot of the machine.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
