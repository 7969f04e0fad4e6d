// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/agent/api"
	apiwire "github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/wireguard"
)

const (
	// nextKnownWithin is between the publication of what will be, as a next key, and its use: other
	// nodes have read of it by then. One that has not drops packets of this node, or sends what it
	// drops, until it has read of the change.
	nextKnownWithin = 5 * time.Second
	keysEvery       = 250 * time.Millisecond
)

// changeKeys has this node use its next keys some time after they were published, until ctx ends.
func (a *Agent) changeKeys(ctx context.Context) error {
	tick := time.NewTicker(keysEvery)
	defer tick.Stop()
	var known keysKnown
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		st := a.wireguard.Status()
		if st == nil || !known.use(st.Next, a.published.nextKeys(), time.Now()) {
			continue
		}
		if err := a.wireguard.Switch(st.Next, a.cluster.snapshot().config.Settings.VXLANPort); err != nil {
			a.log.Error("the change of WireGuard's key is not complete; trying again", "error", err)
		}
	}
}

// keysKnown says when next keys are known to others.
type keysKnown struct {
	keys  model.WireGuardKeys
	since time.Time // when they were seen to be published
}

// use reports whether to use the next keys of a node, of which these were published.
func (k *keysKnown) use(next, published model.WireGuardKeys, now time.Time) bool {
	switch {
	case next == model.WireGuardKeys{} || next != published:
		*k = keysKnown{}
	case k.keys != next:
		*k = keysKnown{next, now}
	default:
		return now.Sub(k.since) >= nextKnownWithin
	}
	return false
}

// nextKeys are those in the NodeStatus that was written last.
func (p *published) nextKeys() (out model.WireGuardKeys) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == nil || p.status.WireGuard == nil {
		return out
	}
	for six, text := range map[bool]string{false: p.status.WireGuard.NextPublicKey, true: p.status.WireGuard.NextPublicKeyIPv6} {
		if key, err := model.ParseWireGuardKey(text); err == nil {
			out = out.With(six, key)
		}
	}
	return out
}

// serveKeyChange begins a change of this node's keys, and says how far it is.
func (a *Agent) serveKeyChange(w http.ResponseWriter, r *http.Request) {
	answerKeyChange(w, r, a.opts.Node, a.wireguard)
}

// keyChanger is a wireguard.Manager.
type keyChanger interface {
	Status() *wireguard.Status
	Prepare(instead model.WireGuardKeys) error
}

func answerKeyChange(w http.ResponseWriter, r *http.Request, node string, m keyChanger) {
	var q apiwire.KeyChange
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, "the question is no KeyChange: "+err.Error(), http.StatusBadRequest)
		return
	}
	st := m.Status()
	if st == nil {
		http.Error(w, wireguard.ErrNoKey.Error()+": encryption is off (wireguardEnabled)", http.StatusConflict)
		return
	}
	have := publicKeys(st.Keys)
	if len(have) == 0 {
		err := errors.Join(append([]error{wireguard.ErrNoKey}, st.Errs...)...)
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	instead := model.WireGuardKeys{}
	for _, six := range []bool{false, true} {
		if k := st.Keys.Of(six); len(q.Replaces) == 0 || slices.Contains(q.Replaces, k.String()) {
			instead = instead.With(six, k)
		}
	}
	if err := m.Prepare(instead); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if st = m.Status(); st == nil {
		http.Error(w, wireguard.ErrNoKey.Error()+": encryption was switched off", http.StatusConflict)
		return
	}
	api.WriteJSON(w, apiwire.Keys{Node: node, Public: publicKeys(st.Keys), Changing: st.Next != model.WireGuardKeys{}})
}

// publicKeys are those that are there.
func publicKeys(k model.WireGuardKeys) (out []string) {
	for _, six := range []bool{false, true} {
		if text := k.Of(six).String(); text != "" {
			out = append(out, text)
		}
	}
	return out
}
