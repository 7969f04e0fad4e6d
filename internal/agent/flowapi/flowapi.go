// SPDX-License-Identifier: Apache-2.0

// Package flowapi serves Hubble's API over the flow records of an agent's node: at a socket of the
// node, and by TLS at a port where one is set. It says what keeps the port from being served, for
// the node's status.
package flowapi

import (
	"context"
	"log/slog"
	"strconv"

	"golang.org/x/sync/errgroup"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/hubble"
)

// API is what is served.
type API struct {
	Server hubble.Server
	Socket string
	At     config.Hubble
	// Nodes looks for those of the cluster; there are none once ctx has ended.
	Nodes func(ctx context.Context) func() []hubble.Node
	Log   *slog.Logger
}

// Serve answers until ctx ends.
func (a *API) Serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	s := &a.Server
	s.Port, s.Nodes = a.At.Port, a.Nodes(ctx)
	g.Go(func() error { return s.ServeSocket(ctx, a.Socket) })
	if s.Port != 0 {
		g.Go(func() error { return s.ServePort(ctx, a.files(), a.Log) })
	}
	return g.Wait()
}

func (a *API) files() hubble.Files {
	return hubble.Files{Cert: a.At.CertFile, Key: a.At.KeyFile, CA: a.At.CAFile, Group: a.At.ClientGroup}
}

// Problems says why the port is not served, or serves nobody.
func (a *API) Problems(node string) []weirv1.Problem {
	err := a.Server.Fault(a.files())
	if a.At.Port == 0 || err == nil {
		return nil
	}
	return []weirv1.Problem{weirv1.Problem{Object: "Node " + node, Field: "FELIX_HubblePort", Value: strconv.Itoa(int(a.At.Port)), Message: "Hubble's API is not served by TCP: " + err.Error(),
		Action: "with weir install --hubble the controller makes the certificates (Secret weir-hubble-server, ConfigMap weir-hubble-ca in namespace kube-system) and the kubelet brings them within two minutes: see the controller's log; otherwise mount the files that FELIX_HubbleCertFile, KeyFile and CAFile name in DaemonSet weir-node"}.Clip()}
}
