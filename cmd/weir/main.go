// SPDX-License-Identifier: Apache-2.0

// Command weir installs Weir in a cluster, says how it is, and handles the objects that configure
// it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/cmd/weir/ui"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi"
	bench "github.com/weir-net/weir/internal/bench/command"
	"github.com/weir-net/weir/internal/exitcode"
	flowscommand "github.com/weir-net/weir/internal/flows/command"
	policy "github.com/weir-net/weir/internal/policy/command"
	"github.com/weir-net/weir/internal/version"
)

// errUnhealthy ends the program with code 1 when everything was said already.
var errUnhealthy = errors.New("unhealthy")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	code := 1
	if coded := (*exitcode.Error)(nil); errors.As(err, &coded) {
		if code = coded.Code; coded.Err == nil {
			stop()
			os.Exit(code)
		}
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, errUnhealthy):
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "weir: stopped:", err)
	default:
		fmt.Fprintln(os.Stderr, "weir:", err)
	}
	stop()
	os.Exit(code)
}

// options are the flags of every command that talks to a cluster.
type options struct {
	kubeconfig string
	verbose    bool
}

// load reads the kubeconfig.
func (o *options) load() (*rest.Config, error) { return client.LoadConfig(o.kubeconfig) }

func (o *options) connect() (*clientset.Clients, error) {
	cfg, err := o.load()
	if err != nil {
		return nil, err
	}
	return clientset.New(cfg, "weir/"+version.Version)
}

// asker asks the agents of nodes.
func (o *options) asker(c *clientset.Clients) (*agentapi.Client, error) {
	cfg, err := o.load()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "weir/" + version.Version
	asker := &agentapi.Client{Kube: c.Kube, Config: cfg, Namespace: deploy.Namespace}
	if o.verbose {
		asker.Report = func(node, path string) { fmt.Fprintf(os.Stderr, "weir: node %s is asked %s\n", node, path) }
	}
	return asker, nil
}

// reach is connect, with what asks agents.
func (o *options) reach() (*clientset.Clients, *agentapi.Client, error) {
	c, err := o.connect()
	if err != nil {
		return nil, nil, err
	}
	asker, err := o.asker(c)
	return c, asker, err
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use: "weir", Short: "Kubernetes networking on eBPF: install it, look at it, configure it",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default $KUBECONFIG or ~/.kube/config)")
	root.PersistentFlags().BoolVar(&o.verbose, "verbose", false, "report how agents are asked: through the controller, or by exec in their pods")
	root.AddCommand(newInstall(o), newUninstall(o), newStatus(o), newMonitor(o), flowscommand.New(o.reachFlows), newWhy(o), ui.New(ui.Program{Reach: o.reach, Status: clusterForPage}), newBGP(o), newWireGuard(o), newIPAM(o), newMigrate(o), newVersion(), newLab(), newNode(), bench.New(o.load), policy.New(o.reach))
	root.AddCommand(newResourceCommands(o)...)
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "weir", version.Version)
			return err
		}}
}
