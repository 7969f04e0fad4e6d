package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/version"
	"github.com/weir-net/weir/internal/why/wire"
)

// whyPause is the least time between two answers: each loads programs.
const whyPause = 200 * time.Millisecond

// whyTurn lets one question in at a time.
type whyTurn struct {
	mu   sync.Mutex
	last time.Time // of the question before; guarded by mu
}

var errBusy = errors.New("the agent is answering " + wire.Busy + "; try again")

// take waits until the pause since the last question is over, and returns what ends the turn.
func (t *whyTurn) take(ctx context.Context) (func(), error) {
	if !t.mu.TryLock() {
		return nil, errBusy
	}
	select {
	case <-time.After(whyPause - time.Since(t.last)):
	case <-ctx.Done():
		t.mu.Unlock()
		return nil, ctx.Err()
	}
	return func() {
		t.last = time.Now()
		t.mu.Unlock()
	}, nil
}

// answerWhy says what becomes of a packet: POST /why with a wire.Request; the answer is a wire.Answer.
func (a *Agent) answerWhy(w http.ResponseWriter, r *http.Request) {
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
	end, err := a.whyTurn.take(r.Context())
	if errors.Is(err, errBusy) {
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	} else if err != nil {
		return // nobody listens any more
	}
	defer end()
	answer, err := a.why(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	answerJSON(w, answer)
}

// errMoved: the state changed while the question was answered.
var errMoved = errors.New("the node's state changes all the time; try again")

// why answers from one state, which the kernel has.
func (a *Agent) why(ctx context.Context, q wire.Request) (*wire.Answer, error) {
	for range 3 {
		state, behind, err := a.settled(ctx)
		if err != nil {
			return nil, err
		}
		inquiry := &inquiry{agent: a, ask: q, state: state, answer: &wire.Answer{Node: a.opts.Node, Version: version.Version, Behind: behind}}
		err = inquiry.run(ctx)
		if errors.Is(err, errMoved) {
			continue
		}
		return inquiry.answer, err
	}
	return nil, errMoved
}

// settled returns the state that is in the kernel, or what of it is not there.
func (a *Agent) settled(ctx context.Context) (s *nodestate.State, behind string, err error) {
	var gen uint64
	if err := a.cluster.do(ctx, func() {
		a.cluster.compute()
		gen, s = a.cluster.gen, a.cluster.snapshot().state
	}); err != nil {
		return nil, "", err
	}
	if s == nil {
		return nil, "", errors.New("the agent has not read the cluster yet")
	}
	wait, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for a.loop.Applied() < gen && wait.Err() == nil {
		select {
		case <-wait.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if done := a.loop.Applied(); done < gen {
		behind = fmt.Sprintf("the kernel has generation %d of the node's state, the newest is %d", done, gen)
	} else if err := a.loop.Err(); err != nil {
		behind = err.Error()
	}
	return s, behind, nil
}
