// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	apiclient "github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/version"
	"github.com/weir-net/weir/internal/watch"
)

// Connect returns the configuration of an agent's sources: of the API server that clients are
// connected to, and of the fan-outs that it knows. claims returns what is known of the addresses of
// nodes, cluster has a function look at the model that the sources' batches were applied to. In
// file is kept where fan-outs were last. lastResort is Config.LastResort.
func Connect(mode Mode, node string, clients *apiclient.Clients, peers trust.Folder, file string, lastResort bool, claims func() map[string]watch.NodeClaims,
	cluster func(context.Context, func(*model.Cluster)) error, log *slog.Logger) Config {
	replicas := &Replicas{Slice: clients.Core.Slice, Namespace: names.Namespace, File: statefile.New[[]string](file, log)}
	// No table of Weir's applies to the agent's own sockets: wrong ones do not keep it from what
	// puts them right.
	// A fan-out's node that is gone is noticed within ten seconds: a kernel answers probes also for
	// a program that gets no CPU.
	dialer := &net.Dialer{Timeout: 3 * time.Second, Control: kernel.MarkOwn, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}}
	return Config{
		Mode: mode, Log: log.With("part", "source"), Replicas: replicas,
		LastResort: lastResort, Node: node, Nodes: func() []string { return slices.Collect(maps.Keys(claims())) },
		API: func() (Source, error) {
			return watch.New(watch.Config{Core: clients.Core, Dynamic: clients.Dynamic, Log: log.With("part", "watch"), Claims: claims()})
		},
		FanOut: func() Fed {
			return client.New(client.Config{
				Log: log.With("part", "fanout"), Node: node, Program: version.Version, Claims: claims(), Replicas: replicas.Known, Cluster: cluster,
				Dial:  func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) },
				TLS:   func() (*tls.Config, error) { return peers.Client(names.ServerName) },
				Token: peers.FanOutToken,
				Expression: func(text string) error {
					_, err := selector.Parse(text)
					return err
				},
				Lookup: func(ctx context.Context, name model.Name, uid string) (*watch.AddPod, error) {
					return watch.LookUpPod(ctx, clients.Core, name, uid)
				},
			})
		},
	}
}
