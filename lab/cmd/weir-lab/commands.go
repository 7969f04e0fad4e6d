// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weir-net/weir/lab/internal/build"
	"github.com/weir-net/weir/lab/internal/cluster"
	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/nodeinit"
	"github.com/weir-net/weir/lab/internal/plan"
	"github.com/weir-net/weir/lab/internal/progress"
)

// Stages that this program runs itself in; not for users.
const (
	launchStage = "node-launch"
	initStage   = "node-init"
)

var errUnhealthy = errors.New("the lab is not healthy")

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "weir-lab",
		Short:         "A real multi-node Kubernetes on one machine",
		SilenceUsage:  true,
		SilenceErrors: true,
		// Flags before a command are this program's, also where the command takes none.
		TraverseChildren: true,
	}
	var name, cache string
	c.PersistentFlags().StringVar(&name, "name", plan.DefaultName, "name of the lab; labs of different names do not disturb each other")
	c.PersistentFlags().StringVar(&cache, "cache", defaultCache(), "folder for what is built once and for the nodes' files")
	c.AddCommand(
		upCommand(&name, &cache), downCommand(&name), statusCommand(&name), listCommand(), execCommand(&name), kubectlCommand(&name),
		loadCommand(&name), buildCommand(&cache), packCommand(&cache), imageCommand(), launchCommand(), initCommand(),
	)
	return c
}

// defaultCache is $WEIR_CACHE, or ~/.cache/weir.
func defaultCache() string {
	if dir := os.Getenv("WEIR_CACHE"); dir != "" {
		if abs, err := filepath.Abs(dir); err == nil {
			return abs
		}
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/root"
	}
	return filepath.Join(home, ".cache", "weir")
}

// besideThis is the folder of this program, where Weir's own programs are too.
func besideThis() string {
	exe, err := os.Executable()
	if err != nil {
		return "bin"
	}
	return filepath.Dir(exe)
}

func upCommand(name, cache *string) *cobra.Command {
	o := cluster.Options{LaunchStage: launchStage}
	var proxy, family, on string
	var noInstall bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Start a lab: a control-plane node, workers, clients and a router",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Proxy, err = proxyOf(proxy, on); err != nil {
				return err
			}
			if o.Family, err = plan.ParseFamily(family); err != nil {
				return err
			}
			for _, path := range []*string{&o.Weir, cache} {
				if *path, err = filepath.Abs(*path); err != nil {
					return fmt.Errorf("resolve %s: %w", *path, err)
				}
			}
			o.Name, o.Cache, o.Install = *name, *cache, !noInstall
			return cluster.Up(cmd.Context(), o, progress.New(cmd.OutOrStdout()))
		},
	}
	f := c.Flags()
	f.IntVar(&o.Workers, "workers", 2, "number of worker nodes")
	f.StringVar(&family, "ip-family", string(plan.IPv4), "IP families of the cluster: ipv4, ipv6, or dual for IPv4 and IPv6")
	f.StringVar(&proxy, "proxy", string(plan.ProxyWeir), "who carries Service traffic: weir, kube-proxy-iptables, kube-proxy-nftables, none; or weir+kube-proxy-nftables, weir+kube-proxy-iptables: Weir for pods and policy alongside a kube-proxy; or calico+kube-proxy-iptables: Calico for these; or flannel+kube-proxy-iptables: flannel for pods")
	f.StringVar(&on, "on", "", "the CNI plugin that Weir works with, in the place of its own: generic (the lab's: ptp, and a route to each node's pods), aws-vpc-cni (Amazon's, in a network like a VPC), azure-cni and azure-cni-overlay (Azure's, in a network like a VNet), each with a kube-proxy")
	f.BoolVar(&o.Racks, "racks", false, "every second worker is behind the router, in another subnet")
	f.BoolVar(&o.BGP, "bgp", false, "every second worker is behind the router, which knows pods by BGP alone; no encapsulation")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "also write the administrator's kubeconfig to this file")
	f.StringVar(&o.Weir, "weir-bin", besideThis(), "folder with Weir's programs")
	f.BoolVar(&noInstall, "no-install", false, "with --proxy weir: import Weir's image, but leave the installation to you")
	f.StringArrayVar(&o.InstallArgs, "install-arg", nil, "with --proxy weir: further argument of weir install (may be repeated)")
	f.StringVar(&o.FeatureGates, "feature-gates", "", "Kubernetes' feature gates for the API server and its controllers, as NAME=true,NAME=false")
	f.BoolVar(&o.ReadOnlyRoot, "read-only-root", false, "mount the nodes' root file systems read-only, as container operating systems do")
	f.BoolVar(&o.KeepFailed, "keep-failed", false, "leave a lab that did not come up as it is, to look into it")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "how long the API server, then the nodes, and then cluster DNS may take to become ready")
	return c
}

// proxyOf is who carries Service traffic, by the flags --proxy and --on.
func proxyOf(proxy, on string) (plan.Proxy, error) {
	p, err := plan.ParseProxy(proxy)
	if err != nil || on == "" {
		return p, err
	}
	if p != plan.ProxyWeir {
		return "", errors.New("--on is a lab of Weir with another CNI plugin: leave --proxy out")
	}
	return plan.ParseOn(on)
}

func packCommand(cache *string) *cobra.Command {
	o := cluster.Options{}
	var proxy string
	c := &cobra.Command{
		Use:   "pack FOLDER",
		Short: "Make a folder that is the --cache of labs on a machine with neither Go nor a network",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Proxy, err = proxyOf(proxy, ""); err != nil {
				return err
			}
			o.Cache = *cache
			return cluster.Pack(cmd.Context(), o, args[0], progress.New(cmd.OutOrStdout()))
		},
	}
	c.Flags().StringVar(&proxy, "proxy", string(plan.ProxyWeir), "as up has it: of which labs")
	c.Flags().StringVar(&o.Weir, "weir-bin", besideThis(), "folder with Weir's programs")
	return c
}

func downCommand(name *string) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab with everything it left on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			labs := []string{*name}
			if all {
				var err error
				if labs, err = cluster.List(); err != nil {
					return err
				}
			}
			p := progress.New(cmd.OutOrStdout())
			var errs []error
			for _, lab := range labs {
				errs = append(errs, cluster.Down(lab, p))
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "remove all labs of this machine")
	return c
}

func statusCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show a lab's machines; exit code 1 if something is not healthy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cluster.Load(*name)
			if err != nil {
				return err
			}
			healthy, err := s.Status(cmd.Context(), cmd.OutOrStdout())
			if err == nil && !healthy {
				err = errUnhealthy
			}
			return err
		},
	}
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the labs of this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			labs, err := cluster.List()
			for _, lab := range labs {
				fmt.Fprintln(cmd.OutOrStdout(), lab)
			}
			return err
		},
	}
}

func execCommand(name *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "exec MACHINE [--] COMMAND [ARGUMENT...]",
		Short: "Run a command inside a node, a client or the router",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := cluster.Load(*name)
			if err != nil {
				return err
			}
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return errors.New("which command?")
			}
			return s.Exec(args[0], command)
		},
	}
	c.Flags().SetInterspersed(false)
	return c
}

// kubectlCommand hands every flag after its name on to kubectl, except a --name that
// comes first.
func kubectlCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [--name LAB] [ARGUMENT...]",
		Short:              "Run kubectl as the lab's administrator, with this machine's files",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			lab, args := leadingName(*name, args)
			s, err := cluster.Load(lab)
			if err != nil {
				return err
			}
			return s.ExecNetwork(plan.ControlPlane, append([]string{"kubectl"}, args...))
		},
	}
}

func leadingName(name string, args []string) (string, []string) {
	if len(args) > 1 && args[0] == "--name" {
		return args[1], args[2:]
	}
	if len(args) > 0 {
		if v, ok := strings.CutPrefix(args[0], "--name="); ok {
			return v, args[1:]
		}
	}
	return name, args
}

func loadCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar...",
		Short: "Import image archives into all nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := cluster.Load(*name)
			if err != nil {
				return err
			}
			p := progress.New(cmd.OutOrStdout())
			for _, archive := range args {
				if err := p.Step("load "+archive, func() error { return s.LoadImage(cmd.Context(), archive) }); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func buildCommand(cache *string) *cobra.Command {
	var e2e bool
	c := &cobra.Command{
		Use:   "build [PROGRAM...]",
		Short: "Build the programs and images of a lab into the cache, or some programs alone",
		RunE: func(cmd *cobra.Command, names []string) error {
			p := progress.New(cmd.OutOrStdout())
			if len(names) > 0 {
				return buildPrograms(cmd, &build.Builder{Cache: *cache, Progress: p}, names)
			}
			programs := build.ForLab
			if e2e {
				programs = build.ForTests
			}
			set, _, err := cluster.Prepare(cmd.Context(), *cache, p, programs)
			if err != nil {
				return err
			}
			for _, f := range set.Folders() {
				fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(set.Dir, f))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&e2e, "e2e", false, "also build e2e.test and ginkgo")
	return c
}

// buildPrograms builds what is named and nothing else, and prints where each is.
func buildPrograms(cmd *cobra.Command, b *build.Builder, names []string) error {
	programs, err := build.Named(names)
	if err != nil {
		return err
	}
	set, err := b.Build(cmd.Context(), programs)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintln(cmd.OutOrStdout(), set.Path(name))
	}
	return nil
}

func imageCommand() *cobra.Command {
	var dir, out string
	var bench bool
	c := &cobra.Command{
		Use:   "image",
		Short: "Write Weir's own image, " + images.WeirImage + ", or that of weir bench, " + images.BenchImage + ", as an archive",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if bench {
				return images.Bench(dir, out)
			}
			return images.Weir(dir, out)
		},
	}
	c.Flags().BoolVar(&bench, "bench", false, "the image of weir bench, which holds weir-bench alone")
	c.Flags().StringVar(&dir, "weir-bin", besideThis(), "folder with Weir's programs")
	c.Flags().StringVarP(&out, "output", "o", "weir.tar", "file to write")
	return c
}

func launchCommand() *cobra.Command {
	return &cobra.Command{
		Use: launchStage, Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := cluster.Launch(args[0], args[1], initStage)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), pid)
			}
			return err
		},
	}
}

func initCommand() *cobra.Command {
	return &cobra.Command{
		Use: initStage, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := nodeinit.ReadSpec(args[0])
			if err != nil {
				return err
			}
			return nodeinit.Run(cmd.Context(), slog.New(slog.NewTextHandler(os.Stderr, nil)), spec)
		},
	}
}
