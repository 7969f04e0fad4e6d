// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/exitcode"
	"github.com/weir-net/weir/internal/why/ask"
)

// Exit codes of `weir why`.
const (
	whyDenied = 1
	whyError  = 2
)

func newWhy(o *options) *cobra.Command {
	f := ask.Options{Within: 2 * answerWithin}
	var output string
	cmd := &cobra.Command{
		Use:   "why SOURCE TARGET:PORT[/PROTOCOL]",
		Short: "Explain why a connection is allowed or denied, and its path; exit code 0 allowed, 1 denied, 2 error",
		Long: `why shows what happens to the first packet of a connection: the Service and its endpoints, the path, and each tier, policy and
rule that is evaluated on both ends. It proves it by running the programs that are loaded on the nodes, with the maps that they
use, on a packet that nobody sends; nothing of what the nodes know or count changes.

SOURCE is a pod (NAMESPACE/NAME, or NAME with -n), node/NAME, or an address outside of the cluster.
TARGET is a Service (svc/NAME, NAME.NAMESPACE), a pod (pod/NAME), either as NAMESPACE/NAME or NAME, or an address.
PORT is a number, or the name of a Service's port; PROTOCOL is tcp, udp, sctp or icmp (an echo request, without a port).

It asks the agents as weir status --live does: by the controller, for which ClusterRole weir-viewer has the rights, or by exec in their pods.`,
		Example: "  weir why shop/cart svc/db:5432\n  weir why cart db.shop:postgres -n shop\n  weir why shop/cart 192.0.2.7/icmp\n  weir why 198.51.100.9 192.0.2.11:30080 ",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			story, err := askWhy(cmd.Context(), o, args[0], args[1], output, f)
			if err == nil {
				err = story.Write(cmd.OutOrStdout(), output)
			}
			switch {
			case err != nil:
				return &exitcode.Error{Code: whyError, Err: err}
			case story.Doubtful:
				return &exitcode.Error{Code: whyError}
			case !story.Allowed:
				return &exitcode.Error{Code: whyDenied}
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.Namespace, "namespace", "n", "default", "`namespace` of names that say none")
	fs.StringVar(&f.Node, "node", "", "`node` at which a packet from outside comes in; default: the one that has the target's address")
	fs.StringVar(&f.Backend, "backend", "", "this endpoint of the Service, as `ADDRESS:PORT`; default: whichever is chosen")
	fs.StringVar(&f.SourceAddr, "source-address", "", "`address` with which the pod sends, which is not its own: whether it was granted (cni.projectcalico.org/allowedSourcePrefixes)")
	fs.Uint16Var(&f.SourcePort, "source-port", 0, "source port, for rules that ask for it and for a connection that is there; default: one of those that clients use")
	fs.StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// askWhy asks with the rights of the kubeconfig.
func askWhy(ctx context.Context, o *options, source, target, output string, f ask.Options) (*ask.Story, error) {
	if output != "text" && output != "json" {
		return nil, fmt.Errorf("-o %q: want text or json", output)
	}
	c, err := o.connect()
	if err != nil {
		return nil, err
	}
	asker, err := o.asker(c)
	if err != nil {
		return nil, err
	}
	return ask.Nodes(ctx, c.Kube, asker, source, target, f)
}
