// SPDX-License-Identifier: Apache-2.0

// Package ask is the side of `weir why` that asks: it finds the objects that a source and a target
// name, asks the agent of the node where the packet begins and then those of the nodes that it is
// sent on to, and writes what they answer as text or as JSON. It knows the API server's objects and
// the agents' API; flags and exit codes are the command's, and package why answers.
package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// Story is what all nodes on the path reported.
type Story struct {
	Source  string           `json:"source"`
	Target  string           `json:"target"`
	Request whywire.Request  `json:"request"`
	Nodes   []whywire.Answer `json:"nodes"`
	Allowed bool             `json:"allowed"`
	Verdict string           `json:"verdict"` // in one line
	// Doubtful: what was found does not fit together; the warnings of the nodes say how.
	Doubtful bool `json:"doubtful"`
}

// Options are what a question says besides its two ends.
type Options struct {
	Namespace  string        // of names that say none
	Node       string        // at which a packet from outside comes in; empty = the one that has the target's address
	Backend    string        // of the Service, as ADDRESS:PORT; empty = whichever is chosen
	SourceAddr string        // with which a pod sends; empty = its own
	SourcePort uint16        // 0 = one of those that clients use
	Within     time.Duration // how long the nodes have in all
}

// maxNodes bounds the nodes on a packet's path.
const maxNodes = 4

// Nodes asks the node where the packet begins, and then each that it is sent on to.
func Nodes(ctx context.Context, kube kubernetes.Interface, asker *agentapi.Client, source, target string, o Options) (*Story, error) {
	s, node, err := resolve(ctx, kube, source, target, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Within)
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
		q.Hook, q.Sender, q.Received = "", netip.Addr{}, &answer.Next.Handover
	}
	s.Conclude()
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

// Conclude says in one line what came of it.
func (s *Story) Conclude() {
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
