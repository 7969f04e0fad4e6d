// SPDX-License-Identifier: Apache-2.0

// Command weir-agent is the node daemon of Weir: it carries pods, Services and network policy on
// its node.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/agent"
	"github.com/weir-net/weir/internal/agent/nodelock"
	"github.com/weir-net/weir/internal/agent/source"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/gctuner"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/version"
)

func main() {
	// Started again by /proc/self/exe (run) it has the name "exe", by which neither pgrep nor weir
	// bench know it. Nothing else depends on the name.
	_ = os.WriteFile("/proc/self/comm", []byte("weir-agent"), 0)
	collector := tune()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command(collector).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "weir-agent:", err)
		os.Exit(exitCode(err))
	}
}

// tune sets what Go programs take from the environment, where that says nothing. The agent holds
// the cluster and changes little of it: to collect more often while it reads the cluster costs next
// to nothing and keeps its memory small; after that garbage is collected when changes are over, by
// the collector that it returns (nil where the environment has a GOGC).
func tune() *gctuner.Collector {
	var collector *gctuner.Collector
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
		collector = gctuner.New()
	}
	client.StreamFirstObjects()
	return collector
}

func command(collector *gctuner.Collector) *cobra.Command {
	o := agent.Options{Environ: os.Environ(), GCTuner: collector}
	var level, fanOut string
	cmd := &cobra.Command{
		Use:   "weir-agent",
		Short: "The node daemon of Weir",
		Long: `weir-agent carries the pods, Services and network policy of its node. It is configured by FelixConfiguration
resources and, field by field, by environment variables FELIX_<field>. When it ends, for whatever reason, traffic and
policy go on as they were; weir-agent started again takes over.`,
		Args:          cobra.NoArgs,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(level)
			if err != nil {
				return err
			}
			o.Log = log
			if o.Node == "" {
				return fmt.Errorf("the node's name is not known: set --node-name or NODE_NAME")
			}
			if o.FanOut, err = source.ParseMode(fanOut); err != nil {
				return fmt.Errorf("--fanout: %w", err)
			}
			return run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Node, "node-name", nodeName(), "name of this machine's Node object (NODE_NAME)")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file; default: the pod's service account, then $KUBECONFIG")
	f.StringVar(&o.StateDir, "state-dir", agent.DefaultStateDir, "folder for what survives a reboot")
	f.StringVar(&o.RunDir, "run-dir", agent.DefaultRunDir, "folder for what need not survive a reboot, and the socket of the CNI plugin")
	f.StringVar(&o.BPFFS, "bpffs", agent.DefaultBPFFS, "folder on a BPF file system for maps and links")
	f.StringVar(&o.BPFFSMount, "bpffs-mount", agent.DefaultBPFFSMount, "where a BPF file system is mounted when that folder is not on one; empty = never")
	f.StringVar(&o.Cgroup, "cgroup", "", "folder of the unified control group hierarchy whose sockets are this node's; default: FELIX_CGROUPV2PATH, then the mount of the hierarchy")
	f.StringVar(&o.CNIConfDir, "cni-conf-dir", agent.DefaultCNIConfDir, "where the container runtime looks for network configurations")
	f.StringVar(&o.PeersDir, "peers-dir", trust.DefaultDir, "folder with the certificates of Weir's authorities and a token for its controllers")
	f.StringVar(&fanOut, "fanout", os.Getenv("WEIR_FANOUT"), "from whom to have the cluster: auto (a fan-out while there are replicas of one, else the API server), never or always; default: auto (WEIR_FANOUT)")
	f.BoolVar(&o.LastResort, "fanout-last-resort", os.Getenv("WEIR_FANOUT_LAST_RESORT") == "true",
		"read the API server by itself, in turns of which one agent in twenty has one at a time, where no fan-out could be reached for minutes (WEIR_FANOUT_LAST_RESORT=true)")
	f.StringVar(&level, "log-level", envOr("WEIR_LOG_LEVEL", "info"), "debug, info, warn or error (WEIR_LOG_LEVEL)")
	cmd.AddCommand(probeCommand(), askCommand(), startedCommand(), cleanUpCommand(&level))
	return cmd
}

func run(ctx context.Context, o agent.Options) error {
	a, err := agent.New(ctx, o)
	if err != nil && ctx.Err() != nil {
		o.Log.Info("ending; the data plane goes on as it is")
		return nil
	}
	if err != nil {
		o.Log.Error("cannot start", "error", err)
		return err
	}
	err = a.Run(ctx)
	if (errors.Is(err, agent.ErrRestart) || errors.Is(err, nodelock.ErrHandOver)) && ctx.Err() == nil {
		o.Log.Info("starting again; the data plane goes on as it is", "handed over", errors.Is(err, nodelock.ErrHandOver))
		return fmt.Errorf("starting again: %w", syscall.Exec("/proc/self/exe", os.Args, a.RestartEnviron(err)))
	}
	if err != nil {
		o.Log.Error("ending; the data plane goes on as it is", "error", err)
		return err
	}
	o.Log.Info("ending; the data plane goes on as it is")
	return nil
}

// probeCommand reports what the kernel can do, without starting anything.
func probeCommand() *cobra.Command {
	var ipip bool
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Report which of the features that Weir needs this kernel has",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ipip {
				return hostnet.ProbeIPIP()
			}
			findings, err := kernel.Probe()
			for _, f := range findings {
				state := "yes"
				switch {
				case f.Missing():
					state = "no"
				case f.Err != nil:
					state = "unknown: " + f.Err.Error()
				}
				need := "needed"
				if !f.Needed {
					need = "can do without"
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-50s since Linux %-5s %-14s %s\n", f.Name, f.Since, need, state)
			}
			if err != nil {
				return err
			}
			if err := ebpf.Try(slog.New(slog.DiscardHandler)); err != nil {
				return fmt.Errorf("kernel %s has what Weir needs, but its programs do not load: %w", kernel.Release(), err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the programs load")
			return nil
		},
	}
	cmd.Flags().BoolVar(&ipip, "ipip", false, "ask for the device of IP in IP alone, which the data plane nftables needs for pools with an ipipMode")
	return cmd
}

func newLogger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
	klog.SetSlogLogger(log.With("part", "client-go"))
	return log, nil
}

// nodeName follows the kubelet: the host name in lower case, unless something else is said.
func nodeName() string {
	return envOr("NODE_NAME", strings.ToLower(agent.Hostname()))
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
