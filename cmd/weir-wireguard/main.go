// SPDX-License-Identifier: Apache-2.0

// Command weir-wireguard has the WireGuard devices of a node whose kernel has none: wireguard-go on
// TUN. The agent says which, and gives them keys and peers.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/version"
	"github.com/weir-net/weir/internal/wireguard/process"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := command(log).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "weir-wireguard:", err)
		os.Exit(1)
	}
}

func command(log *slog.Logger) *cobra.Command {
	o := process.Options{Log: log}
	root := &cobra.Command{
		Use:   "weir-wireguard",
		Short: "Have the WireGuard devices of a node whose kernel has no WireGuard",
		Args:  cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: version.Version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return process.Supervise(cmd.Context(), log, "devices", "--run-dir="+o.RunDir, "--state-dir="+o.StateDir)
		},
	}
	devices := &cobra.Command{
		Use: "devices", Short: "What weir-wireguard starts, and starts again when it ends", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return process.Run(cmd.Context(), o) },
	}
	root.PersistentFlags().StringVar(&o.RunDir, "run-dir", "/run/weir", "folder in which the agent says which devices there are to be")
	root.PersistentFlags().StringVar(&o.StateDir, "state-dir", "/var/lib/weir/wireguard", "folder for what devices were given, with private keys; it survives a reboot")
	root.AddCommand(devices)
	return root
}
