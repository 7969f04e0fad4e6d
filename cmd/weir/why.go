// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// codedError ends the program with a code; err may be nil when everything was said already.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

// Exit codes of `weir why`.
const (
	whyDenied = 1
	whyError  = 2
)

// whyFlags are the flags of `weir why`.
type whyFlags struct {
	namespace, node, backend, output string
	sourcePort                       uint16
}

func newWhy(o *options) *cobra.Command {
	var f whyFlags
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
			story, err := askWhy(cmd.Context(), o, args[0], args[1], f)
			if err == nil {
				err = story.write(cmd.OutOrStdout(), f.output)
			}
			switch {
			case err != nil:
				return &codedError{whyError, err}
			case story.Doubtful:
				return &codedError{code: whyError}
			case !story.Allowed:
				return &codedError{code: whyDenied}
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.namespace, "namespace", "n", "default", "`namespace` of names that say none")
	fs.StringVar(&f.node, "node", "", "`node` at which a packet from outside comes in; default: the one that has the target's address")
	fs.StringVar(&f.backend, "backend", "", "this endpoint of the Service, as `ADDRESS:PORT`; default: whichever is chosen")
	fs.Uint16Var(&f.sourcePort, "source-port", 0, "source port, for rules that ask for it and for a connection that is there; default: one of those that clients use")
	fs.StringVarP(&f.output, "output", "o", "text", "text or json")
	return cmd
}

// story is what all nodes on the path reported.
type story struct {
	Source  string           `json:"source"`
	Target  string           `json:"target"`
	Request whywire.Request  `json:"request"`
	Nodes   []whywire.Answer `json:"nodes"`
	Allowed bool             `json:"allowed"`
	Verdict string           `json:"verdict"` // in one line
	// Doubtful: what was found does not fit together; the warnings of the nodes say how.
	Doubtful bool `json:"doubtful"`
}

// maxNodes bounds the nodes on a packet's path.
const maxNodes = 4

// askWhy asks the node where the packet begins, and then each that it is sent on to.
func askWhy(ctx context.Context, o *options, source, target string, f whyFlags) (*story, error) {
	if f.output != "text" && f.output != "json" {
		return nil, fmt.Errorf("-o %q: want text or json", f.output)
	}
	c, err := o.connect()
	if err != nil {
		return nil, err
	}
	asker, err := o.asker(c)
	if err != nil {
		return nil, err
	}
	s, node, err := resolveWhy(ctx, c.Kube, source, target, f)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*answerWithin)
	defer cancel()
	for q := s.Request; ; {
		answer, err := askNode(ctx, asker, node, q)
		if err != nil {
			return nil, err
		}
		s.Nodes = append(s.Nodes, *answer)
		if answer.Next == nil {
			break
		}
		if len(s.Nodes) == maxNodes {
			return nil, fmt.Errorf("the packet was sent on by %d nodes; this looks like a loop", maxNodes)
		}
		node = answer.Next.Node
		q.Hook, q.Received = "", &answer.Next.Handover
	}
	s.conclude()
	return s, nil
}

// askNode asks one agent, again when it answers somebody else at the moment.
func askNode(ctx context.Context, asker *agentapi.Client, node string, q whywire.Request) (*whywire.Answer, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	for {
		answer := &whywire.Answer{}
		err := asker.AskJSON(ctx, node, wire.Question{Path: whywire.Path, Body: string(body)}, answer)
		if !errors.Is(err, agentapi.ErrRefused) || !strings.Contains(err.Error(), whywire.Busy) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// conclude says in one line what came of it.
func (s *story) conclude() {
	last := &s.Nodes[len(s.Nodes)-1]
	o := &last.Outcome
	s.Allowed = o.Verdict != whywire.Dropped
	switch {
	case s.Allowed:
		s.Verdict = "allowed: " + o.Text
		if o.Verdict == whywire.Left {
			s.Verdict = "allowed as far as Weir decides: " + o.Text
		}
	case o.Rule != "":
		s.Verdict = fmt.Sprintf("denied on node %s by %s (%s)", last.Node, o.Rule, o.Reason)
	default:
		s.Verdict = fmt.Sprintf("denied on node %s: %s (%s)", last.Node, o.Text, o.Reason)
	}
	for i := range s.Nodes {
		s.Doubtful = s.Doubtful || len(s.Nodes[i].Warnings) > 0
	}
}
