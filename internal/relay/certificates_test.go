// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/peerauth/nodecert"
	"github.com/weir-net/weir/internal/relay/agents"
)

// An agent gets a certificate by its connection: for the node that its token is bound to, whatever
// name it wants.
func TestCertificatesOfAgents(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: peerauth.HubbleName}
	k := &peerauth.Keeper{Kube: fake.NewClientset(&corev1.Secret{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta}), Namespace: meta.Namespace, Object: meta.Name,
		Domain: servername.Domain, Clients: true, Now: time.Now}
	if _, err := k.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	signed := make(chan []string, 2)
	signer := &nodecert.Signer{Names: servername.Certified, Log: slog.New(slog.DiscardHandler), Sign: func(ctx context.Context, request []byte, names []string) ([][]byte, error) {
		chain, err := k.SignRequest(ctx, request, names)
		signed <- names
		return chain, err
	}}
	p := newPlace(t, 0)
	p.connected = func(ctx context.Context, a *agents.Agent) { signer.Keep(ctx, a.Peer.Node, a.Conn) }
	connect := func(node, wanted string) *nodecert.Holder {
		h := &nodecert.Holder{Name: servername.Of(wanted), Now: time.Now}
		mux := http.NewServeMux()
		for pattern, handler := range h.Questions() {
			mux.HandleFunc(pattern, handler)
		}
		p.connect(node+" pod", mux)
		if names := <-signed; !slices.Equal(names, servername.Certified(node)) {
			t.Errorf("signed for %s: %q", node, names)
		}
		return h
	}
	own := connect("n1", "n1")
	await.That(t, "the agent has a certificate", func() error { _, err := own.Certificate(); return err })
	if cert, err := own.Certificate(); err != nil || cert.Leaf.VerifyHostname(servername.Of("n1")) != nil {
		t.Errorf("%v, %v", cert, err)
	}
	if _, err := connect("n2", "n1").Certificate(); !errors.Is(err, nodecert.ErrNone) {
		t.Errorf("the agent of n2 took a certificate for n1: %v", err)
	}
}
