// SPDX-License-Identifier: Apache-2.0

// Command weir-bgp has the BGP sessions of a node. It runs beside weir-agent, which tells it over a
// socket what to do, and goes on while the agent is away.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

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

// secretsURL is that of the API server that pods are told.
func secretsURL() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if h := configured("kubernetes_service_host"); h != "" { // the way without any Service
		host, port = h, cmp.Or(configured("kubernetes_service_port"), "443")
	}
	if host == "" {
		return ""
	}
	return process.SecretsURL(host, port)
}

// configured is what ConfigMap weir-config says.
func configured(key string) string {
	text, err := os.ReadFile("/etc/weir/config/" + key)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
