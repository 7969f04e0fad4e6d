// SPDX-License-Identifier: Apache-2.0

// Package flowapi serves Hubble's API over the flow records of an agent's node: at a socket of the
// node, and by TLS at a port where one is set. It says what keeps the port from being served, for
// the node's status.
package flowapi

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"

	"golang.org/x/sync/errgroup"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/hubble"
	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth/nodecert"
)

// API is what is served.
type API struct {
	Server hubble.Server
	Socket string
	At     config.Hubble
	// Certificate is what the port is served by where no files with one are named.
	Certificate nodecert.Holder
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

// CertifiedAs is the name that the controller is to sign a certificate for; empty = files have one,
// or the port is not served.
func CertifiedAs(node string, at config.Hubble) string {
	if at.Port == 0 || at.CAFile == "" || at.CertFile != "" || at.KeyFile != "" {
		return ""
	}
	return servername.Of(node)
}

// Questions are those of the controller about the certificate.
func (a *API) Questions() map[string]http.HandlerFunc { return a.Certificate.Questions() }

func (a *API) files() hubble.Files {
	return hubble.Files{Cert: a.At.CertFile, Key: a.At.KeyFile, CA: a.At.CAFile, Group: a.At.ClientGroup, Issued: a.Certificate.Certificate}
}

// Problems says why the port is not served, or serves nobody.
func (a *API) Problems(node string) []weirv1.Problem {
	err := a.Server.Fault(a.files())
	if a.At.Port == 0 || err == nil {
		return nil
	}
	return []weirv1.Problem{weirv1.Problem{Object: "Node " + node, Field: "FELIX_HubblePort", Value: strconv.Itoa(int(a.At.Port)), Message: "Hubble's API is not served by TCP: " + err.Error(),
		Action: "with weir install --hubble the controller signs the agent's certificate within a minute, and makes the authority (ConfigMap weir-hubble-ca in namespace kube-system), which the kubelet brings within two: see the controller's log; otherwise mount the files that FELIX_HubbleCertFile, KeyFile and CAFile name in DaemonSet weir-node"}.Clip()}
}
