// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/terminal"
)

func newWireGuard(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "wireguard", Short: "Change the keys of the encryption between nodes"}
	cmd.AddCommand(newRotate(o))
	return cmd
}

// rotation changes the keys of nodes.
type rotation struct {
	ask    func(context.Context, string, wire.Question, any) error
	within time.Duration // for one node
	every  time.Duration // between two questions how far it is
	out    io.Writer
}

func newRotate(o *options) *cobra.Command {
	var node string
	var all bool
	r := rotation{every: time.Second}
	cmd := &cobra.Command{Use: "rotate --node NODE | --all", Short: "Have nodes make other keys of WireGuard; open connections go on", Args: cobra.NoArgs,
		Long: `rotate has a node, or all nodes one after another, make another key of WireGuard. A node makes its key itself, and the private
key does not leave it. It publishes the key some seconds before it uses it, so that connections go on and nothing goes in clear.
Agents are asked by the controller, which needs the verb create on agents/wireguardkey in group live.weir.dev (ClusterRole
weir-wireguard-keys), or by exec in their pods.`,
		Example: "  weir wireguard rotate --node worker1\n  weir wireguard rotate --all",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all == (node != "") {
				return errors.New("name a node with --node, or all with --all")
			}
			c, asker, err := o.reach()
			if err != nil {
				return err
			}
			nodes, err := nodesOf(cmd.Context(), c, node)
			if err != nil {
				return err
			}
			r.ask, r.out = asker.AskJSON, cmd.OutOrStdout()
			return r.nodes(cmd.Context(), nodes)
		}}
	cmd.Flags().StringVar(&node, "node", "", "this `node`")
	cmd.Flags().BoolVar(&all, "all", false, "all nodes, one after another")
	cmd.Flags().DurationVar(&r.within, "timeout", 2*time.Minute, "how long one node may take")
	return cmd
}

// nodes changes the keys of nodes, one after another. One that fails does not keep the others from
// it, unless no right is why.
func (r *rotation) nodes(ctx context.Context, nodes []string) error {
	failed := false
	for _, node := range nodes {
		err := r.node(ctx, node)
		if ctx.Err() != nil || errors.Is(err, agentapi.ErrNoRight) {
			return err
		}
		if err != nil {
			failed = true
			if _, err := fmt.Fprintln(r.out, terminal.OneLine("failed: "+err.Error())); err != nil {
				return err
			}
		}
	}
	if failed {
		return errUnhealthy
	}
	return nil
}

// node changes the keys of one node, and waits until it has others.
func (r *rotation) node(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	var q wire.KeyChange
	var last error
	for {
		var now wire.Keys
		err := r.question(ctx, node, q, &now)
		switch {
		case err != nil && (len(q.Replaces) == 0 || errors.Is(err, agentapi.ErrNoRight)):
			return err
		case err != nil: // an agent may be replaced meanwhile: the next one goes on
			last = err
		case len(q.Replaces) == 0:
			q.Replaces = now.Public
		case !now.Changing && !slices.ContainsFunc(now.Public, func(k string) bool { return slices.Contains(q.Replaces, k) }):
			_, err := fmt.Fprintln(r.out, terminal.OneLine(fmt.Sprintf("node %s: %s instead of %s", node, strings.Join(now.Public, ", "), strings.Join(q.Replaces, ", "))))
			return err
		}
		if sleep.For(ctx, r.every) != nil {
			if last != nil {
				return last
			}
			return fmt.Errorf("node %s still has its keys after %s; it changes them some seconds after the API server has taken the next ones", node, r.within)
		}
	}
}

func (r *rotation) question(ctx context.Context, node string, q wire.KeyChange, into *wire.Keys) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if err := r.ask(ctx, node, wire.Question{Path: wire.KeyPath, Body: string(body)}, into); err != nil {
		return err
	}
	if len(into.Public) == 0 {
		return fmt.Errorf("node %s answers without a key", node)
	}
	return nil
}
