// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/bench/probe"
)

// What the pods of `weir bench` get by their environment.
const (
	tokenEnv = "WEIR_BENCH_TOKEN"
	addrEnv  = "WEIR_BENCH_ADDR"
	nameEnv  = "WEIR_BENCH_NAME"
)

// ordinary undoes what the clients of labs need: here goroutines may wait, and a long run makes
// garbage.
func ordinary() {
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	debug.SetGCPercent(400)
}

// agentCommand is the first process of the pods of `weir bench`.
func agentCommand() *cobra.Command {
	var port uint16
	var limit time.Duration
	c := &cobra.Command{
		Use:   "agent",
		Short: "Answer the probes of `weir bench` at this pod's address (" + addrEnv + "), to who knows the token (" + tokenEnv + ")",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ordinary()
			at, err := netip.ParseAddr(os.Getenv(addrEnv))
			if err != nil {
				return fmt.Errorf("%s: %w", addrEnv, err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			s := &probe.Server{At: at, Port: port, Token: os.Getenv(tokenEnv), Name: os.Getenv(nameEnv)}
			var said error
			err = s.Run(ctx, func(l probe.Listening) { said = json.NewEncoder(cmd.OutOrStdout()).Encode(l) })
			return errors.Join(err, said)
		},
	}
	c.Flags().Uint16Var(&port, "port", 0, "port for TCP and UDP; 0 = any")
	c.Flags().DurationVar(&limit, "limit", time.Hour, "how long to serve")
	return c
}

// probeCommand measures once, as the JSON of a probe.Spec says.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe SPEC",
		Short: "Make one measurement, as `weir bench` asks for it; ends when the standard input does",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ordinary()
			var s probe.Spec
			if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
				return fmt.Errorf("reading what to measure: %w", err)
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				cancel(errors.New("nobody listens any more"))
			}()
			r, err := (&probe.Client{Token: os.Getenv(tokenEnv)}).Measure(ctx, s)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		},
	}
}

// nodeCommand describes the node.
func nodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "node",
		Short: "Say what this node is, and what the daemons of its network use",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := probe.ReadDescription(cmd.Context())
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(n)
		},
	}
}

// helloCommand is what a pod does whose start is measured.
func helloCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "hello",
		Short: "Say to who waits for it (" + probe.HelloEnv + ") that this pod has a network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ordinary()
			ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Minute)
			defer cancel()
			return probe.Hello(ctx, os.Getenv(probe.HelloEnv), os.Getenv(probe.HelloTokenEnv))
		},
	}
}
