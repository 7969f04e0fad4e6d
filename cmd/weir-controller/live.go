// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/peerauth/nodecert"
	"github.com/weir-net/weir/internal/relay"
	"github.com/weir-net/weir/internal/relay/agents"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// live hands questions of users on to agents, and answers the API server's about policies, where
// webhook is given. Every instance does so, whether it leads or not.
type live struct {
	*relay.Relay
	serving *peerauth.Serving
	proxy   *peerauth.FrontProxy
}

func newLive(kube kubernetes.Interface, log *slog.Logger, webhook http.Handler) *live {
	proxy := &peerauth.FrontProxy{Kube: kube, Log: log, Now: time.Now}
	hubble := &peerauth.Keeper{Kube: kube, Namespace: deploy.Namespace, Object: peerauth.HubbleName, Now: time.Now}
	signer := &nodecert.Signer{Sign: hubble.SignRequest, Names: servername.Certified, Log: log}
	return &live{
		Relay: relay.New(relay.Config{Kube: kube, Log: log, Proxy: proxy, Reviewer: peerauth.NewReviewer(kube, peerauth.AgentUser(deploy.Namespace), tunnel.Audience),
			StoreReviewer: peerauth.NewReviewer(kube, names.User, tunnel.Audience), Admission: webhook,
			Connected: func(ctx context.Context, a *agents.Agent) { signer.Keep(ctx, a.Peer.Node, a.Conn) }}),
		serving: &peerauth.Serving{Kube: kube, Namespace: deploy.Namespace, Name: tunnel.ServerName, Log: log, Now: time.Now},
		proxy:   proxy,
	}
}

// run serves until ctx ends.
func (v *live) run(ctx context.Context, addr string) {
	go v.serving.Run(ctx)
	go v.proxy.Run(ctx)
	httplimit.ListenInTurn(ctx, addr, "questions about nodes", slog.Default(), func(l net.Listener) error { return v.Serve(ctx, l, v.serving.Config()) })
}
