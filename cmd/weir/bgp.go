// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/show"
	"github.com/weir-net/weir/internal/terminal"
)

// bgpFlags are those of all commands about BGP.
type bgpFlags struct {
	*options
	node, output, local string
	limit               int
}

func newBGP(o *options) *cobra.Command {
	f := &bgpFlags{options: o}
	cmd := &cobra.Command{Use: "bgp", Short: "Show BGP: the sessions of nodes, and the routes that they have",
		Long: `bgp shows what the nodes' BGP processes have. It asks the agents as weir status --live does: by the controller, for which
ClusterRole weir-viewer has the rights, or by exec in their pods. On a node, as root, --local asks its agent without the API server.`}
	pf := cmd.PersistentFlags()
	pf.StringVar(&f.node, "node", "", "only this `node`")
	pf.StringVarP(&f.output, "output", "o", "text", "text or json")
	pf.StringVar(&f.local, "local", "", "ask the agent of this machine, by the socket in this `folder`")
	pf.Lookup("local").NoOptDefVal = "/run/weir"
	cmd.AddCommand(newBGPPeers(f), newBGPRoutes(f), newBGPNeighbor(f))
	return cmd
}

func newBGPPeers(f *bgpFlags) *cobra.Command {
	return &cobra.Command{Use: "peers", Short: "Show the sessions, one a line; exit code 1 if one is not established", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answers, err := askBGP[feed.Shown](cmd, f, "/bgp")
			if err != nil {
				return err
			}
			return f.show(cmd, answers, func(out io.Writer) error { return show.Peers(out, answers) }, answers.PeersWell())
		}}
}

func newBGPRoutes(f *bgpFlags) *cobra.Command {
	var peer string
	var sent bool
	cmd := &cobra.Command{Use: "routes [PREFIX|ADDRESS]", Short: "Show the routes that the nodes' BGP processes have", Args: cobra.MaximumNArgs(1),
		Long: `routes shows all routes that are known, the best of each prefix first; with a PREFIX those of it and within it, with an ADDRESS
those that lead to it. A route that is "in kernel" is used for packets: docs/guides/bgp.md says which are not.`,
		Example: "  weir bgp routes --node worker1\n  weir bgp routes 10.65.0.0/16\n  weir bgp routes --peer 192.0.2.9 --sent",
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			if len(args) == 1 {
				if err := addressOrPrefix(args[0]); err != nil {
					return err
				}
				query.Set("prefix", args[0])
			}
			if peer != "" {
				if _, err := netip.ParseAddr(peer); err != nil {
					return fmt.Errorf("--peer %q is no address", peer)
				}
				query.Set("peer", peer)
			}
			if sent {
				if peer == "" {
					return errors.New("--sent is of one peer: name it with --peer")
				}
				query.Set("sent", "true")
			}
			path := "/bgproutes"
			if len(query) > 0 {
				path += "?" + query.Encode()
			}
			answers, err := askBGP[feed.Answer](cmd, f, path)
			if err != nil {
				return err
			}
			return f.show(cmd, answers, func(out io.Writer) error { return show.Routes(out, answers, sent, f.limit) }, true)
		}}
	cmd.Flags().StringVar(&peer, "peer", "", "only routes that the peer with this `address` sent, also those that are not the best")
	cmd.Flags().BoolVar(&sent, "sent", false, "with --peer: what is sent to it")
	cmd.Flags().IntVar(&f.limit, "limit", 1000, "most lines of a node as text; 0: all that it answers with (20,000)")
	return cmd
}

func newBGPNeighbor(f *bgpFlags) *cobra.Command {
	return &cobra.Command{Use: "neighbor ADDRESS", Aliases: []string{"neighbour"}, Short: "Show the sessions with one peer in full: state, timers, capabilities, counters, last error", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := netip.ParseAddr(args[0]); err != nil {
				return fmt.Errorf("%q is no address", args[0])
			}
			answers, err := askBGP[feed.Shown](cmd, f, "/bgp?"+url.Values{"neighbor": {args[0]}}.Encode())
			if err != nil {
				return err
			}
			return f.show(cmd, answers, func(out io.Writer) error { return show.Neighbours(out, answers, args[0]) }, true)
		}}
}

func addressOrPrefix(text string) error {
	_, err1 := netip.ParseAddr(text)
	_, err2 := netip.ParsePrefix(text)
	if err1 != nil && err2 != nil {
		return fmt.Errorf("%q is neither a prefix nor an address", text)
	}
	return nil
}

// askBGP asks the node, or all.
func askBGP[T any](cmd *cobra.Command, f *bgpFlags, path string) (show.Answers[T], error) {
	if f.output != "text" && f.output != "json" {
		return nil, fmt.Errorf("-o %q: want text or json", f.output)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*answerWithin)
	defer cancel()
	if f.local != "" {
		if f.node != "" {
			return nil, errors.New("--local is this machine: --node says another")
		}
		return askLocal[T](ctx, f.local, path)
	}
	c, asker, err := f.reach()
	if err != nil {
		return nil, err
	}
	all, err := nodesOf(ctx, c, "")
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, name := range all {
		if f.node == "" || name == f.node {
			nodes = append(nodes, name)
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("there is no node %q", f.node)
	}
	return askEach[T](ctx, nodes, asker.AskJSON, path)
}

// askEach asks nodes by a function. That no user may ask is an error of all.
func askEach[T any](ctx context.Context, nodes []string, ask func(context.Context, string, wire.Question, any) error, path string) (show.Answers[T], error) {
	out := make(show.Answers[T], len(nodes))
	errs := agentapi.Each(nodes, func(i int, node string) error {
		out[i].Node = node
		var got T
		err := ask(ctx, node, wire.Question{Path: path}, &got)
		if err == nil {
			out[i].BGP = &got
		}
		return err
	})
	for i, err := range errs {
		if errors.Is(err, agentapi.ErrNoRight) {
			return nil, err
		}
		if err != nil {
			out[i].Error, out[i].Nothing = err.Error(), errors.Is(err, agentapi.ErrRefused)
		}
	}
	return out, nil
}

// askLocal asks the agent of this machine.
func askLocal[T any](ctx context.Context, folder, path string) (show.Answers[T], error) {
	var text bytes.Buffer
	one := show.Answer[T]{Node: "this node"}
	if name, err := os.Hostname(); err == nil {
		one.Node = name
	}
	if err := wire.Do(ctx, folder, wire.Question{Path: path}, &text); err != nil {
		var failure *wire.Error
		if !errors.As(err, &failure) || failure.Code != wire.ExitRefused {
			return nil, err
		}
		one.Error, one.Nothing = failure.Text, true
		return show.Answers[T]{one}, nil
	}
	one.BGP = new(T)
	if err := json.Unmarshal(text.Bytes(), one.BGP); err != nil {
		return nil, fmt.Errorf("the agent's answer to %s: %w", path, err)
	}
	return show.Answers[T]{one}, nil
}

// show writes answers. The exit code is 1 where an agent did not answer, or all is not well.
func (f *bgpFlags) show(cmd *cobra.Command, answers any, asText func(io.Writer) error, well bool) error {
	out := cmd.OutOrStdout()
	if f.output == "json" {
		text, err := terminal.JSON(answers, "  ")
		if err != nil {
			return err
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	} else if err := asText(out); err != nil {
		return err
	}
	if silent, is := answers.(interface{ Silent() bool }); !well || is && silent.Silent() {
		return errUnhealthy
	}
	return nil
}
