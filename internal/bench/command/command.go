// SPDX-License-Identifier: Apache-2.0

// Package command is `weir bench`: runs of the suite in a cluster, and what is done with the files
// of their results.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/result"
	"github.com/weir-net/weir/internal/bench/suite"
	"github.com/weir-net/weir/internal/terminal"
	"github.com/weir-net/weir/internal/version"
)

// New returns the command. Load reads the kubeconfig that the user names.
func New(load func() (*rest.Config, error)) *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure the pod network of any cluster, compare runs, make reports",
		Long: "Measure the pod network of any cluster, whatever carries it: bandwidth, CPU, latency, rates, the control plane.\n" +
			"It needs a kubeconfig and an image with weir-bench; all that it makes is in a namespace of its own, and one more for rows of the control\n" +
			"plane, which it removes.",
	}
	c.AddCommand(newRun(load), newRows(), newClean(load), newCompare(), newReport())
	return c
}

func newRun(load func() (*rest.Config, error)) *cobra.Command {
	s := suite.Defaults()
	s.Version = version.Version
	var output string
	var tests []string
	var mbits float64
	c := &cobra.Command{
		Use:   "run",
		Short: "Measure between two nodes of the cluster",
		Example: "  weir bench run --client-node node1 --server-node node2 --output node1-node2.json\n" +
			"  weir bench run --rows pod2pod,pod2svc/tcp --duration 10s --rounds 6",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.UDPRate = mbits * 1e6
			if len(tests) > 0 {
				if cmd.Flags().Changed("rows") {
					return errors.New("--rows and --tests are the same: give one")
				}
				s.Rows = tests
			}
			if err := result.CheckOutput(output); err != nil {
				return err
			}
			cluster, err := connect(load)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return run(ctx, cmd.OutOrStdout(), cluster, s, output)
		},
	}
	f := c.Flags()
	f.StringVar(&s.ClientNode, "client-node", "", "node of the clients (default: a ready node)")
	f.StringVar(&s.ServerNode, "server-node", "", "node of the servers (default: another ready node); the same as --client-node measures one node")
	f.DurationVar(&s.Duration, "duration", s.Duration, "how long one measurement takes")
	f.DurationVar(&s.WarmUp, "warm-up", s.WarmUp, "how long traffic runs before it counts")
	f.IntVar(&s.Rounds, "rounds", s.Rounds, "how often each row is measured, in turns; six give intervals of 95 %")
	f.StringSliceVar(&s.Rows, "rows", s.Rows, "rows, patterns (pod2*/tcp) and groups: "+suite.Groups)
	f.StringSliceVar(&tests, "tests", nil, "the same as --rows")
	f.StringVarP(&output, "output", "o", "weir-bench.json", "`file` for the results; it is written after each round")
	f.StringVar(&s.Name, "name", "", "name of the run in reports")
	f.StringVar(&s.Image, "image", s.Image, "image with /weir-bench")
	f.IntVar(&s.Streams, "streams", s.Streams, "streams of tcp-many")
	f.Float64Var(&mbits, "udp-rate", s.UDPRate/1e6, "rate of udp-rate, Mbit/s")
	f.IntVar(&s.Requests, "requests", s.Requests, "requests of http; ab makes five times as many")
	f.IntVar(&s.Concurrency, "concurrency", s.Concurrency, "connections at a time of ab and cps")
	f.StringVar(&s.Congestion, "congestion", "", "TCP congestion control of the clients (default: that of the client's node)")
	f.StringVar(&s.IPFamily, "ip-family", "", "IPv4 or IPv6, of the Services (default: the cluster's first)")
	f.IntSliceVar(&s.Services, "services", nil, "measure with so many other Services, one number after the other, such as 0,1000,10000")
	f.IntVar(&s.Policies, "policies", 0, "measure rows of the control plane with so many other network policies")
	f.IntVar(&s.Changes, "changes", s.Changes, "changes of a row of the control plane, in a round")
	f.Uint16Var(&s.HostPort, "host-port", 0, "port of the servers in the nodes' networks, TCP and UDP; 0 = any that is free")
	f.DurationVar(&s.PodPatience, "pod-timeout", s.PodPatience, "how long pods may take to start")
	return c
}

// run runs, writes the file and prints the tables. What was measured is kept whatever happens.
func run(ctx context.Context, out io.Writer, cluster *suite.Cluster, s suite.Options, output string) error {
	f, err := suite.Run(ctx, cluster, s, terminal.NewProgress(out), func(f *result.File) error { return f.Write(output) })
	if f == nil {
		return err
	}
	return errors.Join(err, end(out, f, output))
}

// end writes the file and prints the tables: also where the file cannot be written.
func end(out io.Writer, f *result.File, output string) error {
	failed := f.Write(output)
	err := errors.Join(failed, f.Show(terminal.Text{Writer: out}))
	if failed == nil {
		fmt.Fprintf(out, "\nwritten to %s\n", output)
	}
	return err
}

// untilSignal makes what would end the program at once leave it the time to remove what it made: a
// terminal that goes away (unless it is to survive that, as under nohup), and an output that nobody
// reads any more, as with `| tee` and Ctrl-C.
func untilSignal(ctx context.Context) (context.Context, func()) {
	signal.Ignore(syscall.SIGPIPE)
	stop := func() {}
	if !signal.Ignored(syscall.SIGHUP) {
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	return ctx, stop
}

// connect is the API server, as the suite needs it.
func connect(load func() (*rest.Config, error)) (*suite.Cluster, error) {
	cfg, err := load()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "weir/" + version.Version
	cfg.QPS, cfg.Burst = 200, 400
	return suite.Connect(cfg)
}

func newRows() *cobra.Command {
	return &cobra.Command{
		Use: "rows", Short: "List what can be measured", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := bench.Table{Head: []string{"row", "what", ""}}
			for _, r := range suite.AllRows(suite.Defaults()) {
				usual := ""
				if r.Usual {
					usual = "default"
				}
				t.Add(r.ID, r.Title, usual)
			}
			return t.Write(cmd.OutOrStdout(), false)
		},
	}
}

func newClean(load func() (*rest.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use: "clean", Short: "Remove what killed runs left behind; also ends runs in progress", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := connect(load)
			if err != nil {
				return err
			}
			return suite.Clean(cmd.Context(), cluster.Kube, cmd.OutOrStdout())
		},
	}
}
