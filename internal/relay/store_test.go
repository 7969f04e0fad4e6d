// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/relay/live"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

const storeUser = names.User

// store has a store of flow records connected, with a token, and returns how that ends.
func (p *place) store(to tunnel.Server, token, says string) chan error {
	p.t.Helper()
	a := newStandIn(p.t, "n1", p.addr, p.bundle, token)
	mux := http.NewServeMux()
	mux.Handle(tunnel.TokenPath, a.handler)
	mux.HandleFunc("GET /flows", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(says + r.URL.Query().Get("limit")))
	})
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(cancel)
	go func() { ended <- to.Answer(ctx, &net.Dialer{}, p.addr, a.folder, mux) }()
	return ended
}

// What is asked about all nodes the store answers; without one, that is said at once.
func TestStoreAnswers(t *testing.T) {
	t.Parallel()
	p := newPlace(t, 0)
	p.connect("n1 pod-1", nil)
	if code, text := p.answered("viewer", live.AllNodes, "/flows", p.proxy); code != http.StatusServiceUnavailable || !strings.Contains(text, "no store of flow records") {
		t.Errorf("%d %s", code, text)
	}
	p.store(tunnel.ControllerOfStore(), "store:n1 pod-2", "of all nodes: ")
	await.That(t, "an answer of the store", func() error {
		if code, text := p.answered("viewer", live.AllNodes, "/flows?limit=5", p.proxy); code != http.StatusOK || text != "of all nodes: 5" {
			return errors.New(text)
		}
		return nil
	})
	for _, question := range []string{"/status", "/events"} {
		if code, text := p.answered("viewer", live.AllNodes, question, p.proxy); code != http.StatusNotFound {
			t.Errorf("%s: %d %s", question, code, text)
		}
	}
	if code, text := p.answered("viewer", "n1", "/status", p.proxy); code != http.StatusOK || text != "status of n1" {
		t.Errorf("the agent of the store's node: %d %s", code, text)
	}
}

// Only who may ask about all nodes may ask the store, and nothing but the store answers for it.
func TestHostileStore(t *testing.T) {
	p := newPlace(t, 0)
	t.Run("for one node", func(t *testing.T) {
		hostile.Record(t, "a user who may ask about one node asks the store of flow records about all", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		if code, text := p.answered("viewer of n1", live.AllNodes, "/flows", p.proxy); code != http.StatusForbidden {
			t.Errorf("%d %s", code, text)
		}
	})
	for name, attack := range map[string]struct {
		to    tunnel.Server
		token string
	}{
		"a compromised node answers as the store of flow records":   {tunnel.ControllerOfStore(), "n1 pod-1"},
		"the token of the store of flow records answers for a node": {tunnel.Controller(), "store:n1 pod-2"},
	} {
		t.Run(name, func(t *testing.T) {
			hostile.Record(t, name, hostile.Node, hostile.ControlPlane, hostile.Both)
			err := <-p.store(attack.to, attack.token, "forged")
			if err == nil || !strings.Contains(err.Error(), "the token does not count") {
				t.Errorf("%v", err)
			}
		})
	}
}
