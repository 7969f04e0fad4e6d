// SPDX-License-Identifier: Apache-2.0

// Package why answers `weir why`: what one node does with a packet, and why. The answer comes from
// the data plane itself: the loaded programs are run on the packet (eBPF), or the rules in the
// kernel are evaluated for it (nftables), and nothing is sent. Alongside it, package calc explains
// the policies at each end from the cluster's objects, and the tables of the node's state say what
// they hold; where the three do not agree the answer has a warning.
//
//	Engine (why.go) ─ inquiry (inquiry.go): the packet, at the hook where it meets the node
//	  ├─ program.go, nftables.go   what the data plane does with it
//	  ├─ outcome.go                that in words, and the node where to ask on
//	  └─ policy.go, hostendpoints.go   what policy says, compared with that
package why

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/dryrun"
	nftdryrun "github.com/weir-net/weir/internal/dataplane/nft/dryrun"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/version"
	"github.com/weir-net/weir/internal/why/wire"
)

// Agent is what the engine needs of the node's agent.
type Agent interface {
	// AppliedState returns the newest state, once it is in the kernel; behind says what of it is
	// not there in good time.
	AppliedState(ctx context.Context) (s *nodestate.State, behind string, err error)
	// Explain asks about the cluster as it was when a state was computed, or returns ErrMoved when
	// that is not the newest state any more.
	Explain(ctx context.Context, s *nodestate.State, ask Explainer) (x policy.Explanation, found bool, err error)
	// DataPlane is what carries the node's packets.
	DataPlane() DataPlane
	// LinkAddress is the MAC address by which other nodes reach this one, "" when it is not known.
	LinkAddress() string
}

// Explainer asks package calc about a cluster.
type Explainer func(*model.Cluster) (x policy.Explanation, found bool)

// DataPlane is what the engine asks of any data plane. One that is also Programs is eBPF's, one
// that is also Rules that of nftables.
type DataPlane interface {
	Name() string // as in a NodeStatus
	Places() dataplane.Places
	IfIndex(a nodestate.Addr) int
}

// Programs is a data plane whose programs can be run on a packet that is not sent.
type Programs interface {
	// Programs loads second instances of programs.
	Programs(names []string) (*dryrun.Instance, error)
	// Prove compares such an instance with the program that the node's packets meet.
	Prove(r *dryrun.Instance, program string, ifindex int, six bool) (ebpf.Proof, error)
}

// Names is a data plane that knows to which addresses domain names led a pod.
type Names interface {
	NamesOf(ifindex int, a netip.Addr) ([]dataplane.NamedBy, error)
}

// Rules is a data plane whose rules in the kernel can be evaluated for a packet that is not sent.
type Rules interface {
	DryRun(nftdryrun.Question) (*nftdryrun.Trace, error)
}

// ErrMoved says that the state changed while the question was answered.
var ErrMoved = errors.New("the node's state changes all the time; try again")

// Engine answers questions about the packets of one node, one at a time.
type Engine struct {
	Node  string
	Agent Agent

	slot slot
}

// minPause is the least time between two answers: each loads programs.
const minPause = 200 * time.Millisecond

// slot lets one question in at a time.
type slot struct {
	mu   sync.Mutex
	last time.Time // when the question before was answered; guarded by mu
}

var errBusy = errors.New("the agent is answering " + wire.Busy + "; try again")

// acquire waits until the pause since the last question is over, and returns what frees the slot.
func (s *slot) acquire(ctx context.Context) (release func(), err error) {
	if !s.mu.TryLock() {
		return nil, errBusy
	}
	select {
	case <-time.After(minPause - time.Since(s.last)):
	case <-ctx.Done():
		s.mu.Unlock()
		return nil, ctx.Err()
	}
	return func() {
		s.last = time.Now()
		s.mu.Unlock()
	}, nil
}

// ServeHTTP answers POST /why with a wire.Request; the answer is a wire.Answer.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q wire.Request
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields() // what one does not know of a question changes its answer
	if err := d.Decode(&q); err != nil {
		http.Error(w, fmt.Sprintf("the question cannot be read by weir-agent %s: %v", version.Version, err), http.StatusBadRequest)
		return
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		http.Error(w, "there is something behind the question", http.StatusBadRequest)
		return
	}
	if err := q.Check(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	release, err := e.slot.acquire(r.Context())
	if errors.Is(err, errBusy) {
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	} else if err != nil {
		return // nobody listens any more
	}
	defer release()
	answer, err := e.answer(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	text, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // who asked may have gone
}

// answer answers from one state, which the kernel has.
func (e *Engine) answer(ctx context.Context, q wire.Request) (*wire.Answer, error) {
	for range 3 {
		state, behind, err := e.Agent.AppliedState(ctx)
		if err != nil {
			return nil, err
		}
		i := &inquiry{agent: e.Agent, ask: q, state: state, answer: &wire.Answer{Node: e.Node, Version: version.Version, Behind: behind}}
		err = i.run(ctx)
		if errors.Is(err, ErrMoved) {
			continue
		}
		return i.answer, err
	}
	return nil, ErrMoved
}
