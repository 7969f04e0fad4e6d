// SPDX-License-Identifier: Apache-2.0

// Package nodeprobe looks whether other nodes are there, by ICMP echo requests (RFC 792, RFC 4443)
// to their addresses: a node that answered and does so no longer is taken as down within a second,
// long before Kubernetes says so. One that never answered, where a firewall drops such requests for
// one, is never taken as down.
package nodeprobe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"
)

// Config is what a Prober needs.
type Config struct {
	Log *slog.Logger
	// Down is called with the nodes that are taken as down, whenever these are others than before.
	// It must not block.
	Down func(map[netip.Addr]bool)
}

const (
	// tick is the time between two requests to a node.
	tick = 150 * time.Millisecond
	// missed is how many ticks one after the other without an answer make a node down: ticks of
	// this process, which takes nobody as down while it gets no CPU itself.
	missed = 4
	// heard is how many ticks with an answer end that.
	heard = 3
)

// Prober probes nodes. It is safe for concurrent use.
type Prober struct {
	cfg  Config
	wake chan struct{}

	mu    sync.Mutex
	nodes map[netip.Addr]bool

	// Of Run only.
	known map[netip.Addr]*node
	down  map[netip.Addr]bool
	token [tokenSize]byte // of this process's requests, so that nobody can answer who has not seen one
	id    uint16
	seq   uint16
}

type node struct {
	asked, answered, down bool
	heardNow              bool // since the last tick
	missed, heard         int  // ticks, one after the other
}

// New returns a Prober that probes nobody yet.
func New(cfg Config) *Prober {
	p := &Prober{cfg: cfg, wake: make(chan struct{}, 1), known: map[netip.Addr]*node{}, down: map[netip.Addr]bool{}}
	var random [2 + tokenSize]byte
	_, _ = rand.Read(random[:]) // does not fail (crypto/rand)
	p.id = binary.BigEndian.Uint16(random[:])
	copy(p.token[:], random[2:])
	return p
}

// Update sets the addresses of nodes that are probed. The map must not change any more.
func (p *Prober) Update(nodes map[netip.Addr]bool) {
	p.mu.Lock()
	p.nodes = nodes
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. While nobody is probed it has no sockets, and sleeps.
func (p *Prober) Run(ctx context.Context) error {
	var s *sockets
	defer func() { s.close() }()
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		p.mu.Lock()
		nodes := p.nodes
		p.mu.Unlock()
		if len(nodes) == 0 && len(p.known) == 0 {
			s.close()
			s = nil
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if s == nil {
			var err error
			if s, err = open(); err != nil {
				p.cfg.Log.Error("nodes cannot be probed", "error", err)
				return nil // gateways count as long as Kubernetes has them ready
			}
		}
		s.read(p.note)
		p.look(nodes)
		p.seq++
		for a := range nodes {
			if err := s.send(a, p.id, p.seq, p.token); err != nil {
				p.cfg.Log.Debug("cannot probe a node", "node", a, "error", err)
			}
			p.known[a].asked = true
		}
	}
}

// note takes an answer.
func (p *Prober) note(from netip.Addr, id uint16, token []byte) {
	if n := p.known[from]; n != nil && id == p.id && string(token) == string(p.token[:]) {
		n.heardNow = true
	}
}

// look updates the nodes by what came since the last tick.
func (p *Prober) look(nodes map[netip.Addr]bool) {
	maps.DeleteFunc(p.known, func(a netip.Addr, _ *node) bool { _, still := nodes[a]; return !still })
	down := map[netip.Addr]bool{}
	for a := range nodes {
		n := p.known[a]
		if n == nil {
			n = &node{}
			p.known[a] = n
		}
		n.update()
		if n.down {
			down[a] = true
		}
	}
	if maps.Equal(down, p.down) {
		return
	}
	for a := range nodes {
		switch {
		case down[a] && !p.down[a]:
			p.cfg.Log.Warn("a node with egress gateways answers no longer; pods leave by others", "node", a)
		case !down[a] && p.down[a]:
			p.cfg.Log.Info("a node with egress gateways answers again", "node", a)
		}
	}
	p.down = down
	p.cfg.Down(maps.Clone(down))
}

// update is called once a tick.
func (n *node) update() {
	switch {
	case !n.asked:
		return
	case n.heardNow:
		n.heardNow, n.answered, n.missed = false, true, 0
		if n.heard++; n.heard >= heard {
			n.down = false
		}
	default:
		n.heard = 0
		if n.missed++; n.missed >= missed && n.answered {
			n.down = true
		}
	}
}
