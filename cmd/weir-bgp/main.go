// SPDX-License-Identifier: Apache-2.0

// Command weir-bgp has the BGP sessions of a node. The agent hands on to it over a socket what
// should be; it goes on while the agent is away.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/weir-net/weir/api/podenv"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/process"
	"github.com/weir-net/weir/internal/version"
)

func main() {
	var o process.Options
	flag.StringVar(&o.Socket, "socket", "/run/weir/"+feed.SocketDir+"/"+feed.SocketName, "`path` of the agent's socket")
	flag.StringVar(&o.StateDir, "state-dir", "/var/lib/weir/bgp", "`folder` for what the agent said last")
	flag.StringVar(&o.SecretsURL, "secrets", secretsURL(), "`URL` below which the Secrets with passwords are")
	flag.StringVar(&o.AccountDir, "account", "/var/run/secrets/kubernetes.io/serviceaccount", "`folder` with the service account's token and the API server's authority")
	level := flag.String("log-level", "info", "debug, info, warn or error")
	show := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *show {
		fmt.Println(version.Version)
		return
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, errors.Join(err, errors.New("usage: weir-bgp [flags]; see weir-bgp -help")))
		os.Exit(2)
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
	if err := os.MkdirAll(filepath.Clean(o.StateDir), 0o700); err != nil {
		o.Log.Error("weir-bgp cannot keep its state", "error", err)
		os.Exit(1)
	}
	// Peers are not told: they keep what they have until the next process is there (graceful
	// restart).
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := process.Run(ctx, o); err != nil {
		o.Log.Error("weir-bgp ends", "error", err)
		os.Exit(1)
	}
}

// secretsURL is that of the API server that pods are told, or that is configured.
func secretsURL() string {
	server := podenv.APIServer()
	if host := os.Getenv("KUBERNETES_SERVICE_HOST"); server == "" && host != "" {
		server = net.JoinHostPort(host, os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	if server == "" {
		return ""
	}
	return process.SecretsURL(server)
}
