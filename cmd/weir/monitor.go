// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/terminal"
)

// newMonitor shows what policy says of flows, as it happens.
func newMonitor(o *options) *cobra.Command {
	var node, output string
	var filter events.Filter
	cmd := &cobra.Command{Use: "monitor", Short: "Show verdicts of policy on all nodes as they happen, with the rule", Args: cobra.NoArgs,
		Long: `Show what policy decides on flows as it happens, on all nodes or on one: time, node, source, destination, protocol and port,
the verdict and the rule that decided, and what staged policies would have decided. A flow is reported when it begins, when it is
evaluated again after a change, and, while it is denied, with each packet (at most 1,000 a second on each CPU).
It ends with Ctrl-C. ClusterRole weir-viewer has the rights that are needed, or the right to run programs in the pods of weir-node.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("output %q: json, or none for text", output)
			}
			if err := filter.Check(); err != nil {
				return err
			}
			clients, asker, err := o.reach()
			if err != nil {
				return err
			}
			nodes, err := nodesOf(cmd.Context(), clients, node)
			if err != nil {
				return err
			}
			m := &monitor{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), json: output == "json", ask: asker.Ask}
			return m.run(cmd.Context(), nodes, filter)
		}}
	cmd.Flags().StringVar(&node, "node", "", "only this `node`")
	cmd.Flags().StringVar(&filter.Type, "type", "all", "drop: what is denied; log: what rules with action Log match; verdict, all: every flow that policy decides on")
	cmd.Flags().StringVar(&filter.Pod, "pod", "", "only flows of this pod, as `namespace/name`")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: one object a line")
	return cmd
}

// reachFlows says who is asked for records of flows.
func (o *options) reachFlows(ctx context.Context, node string) (*ask.Preferred, error) {
	clients, asker, err := o.reach()
	if err != nil {
		return nil, err
	}
	nodes, err := nodesOf(ctx, clients, node)
	return &ask.Preferred{Store: &ask.Store{Ask: asker.AskStore}, Agents: &ask.Agents{Nodes: nodes, Ask: asker.Ask}}, err
}

// nodesOf is one node, or all.
func nodesOf(ctx context.Context, clients *clientset.Clients, node string) ([]string, error) {
	if node != "" {
		return []string{node}, nil
	}
	list, err := clients.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// monitor copies the events of nodes to out.
type monitor struct {
	mu        sync.Mutex
	out, errs io.Writer
	json      bool
	ask       func(ctx context.Context, node string, q wire.Question, out io.Writer) error
}

// run goes on until ctx ends, or no node is left.
func (m *monitor) run(ctx context.Context, nodes []string, f events.Filter) error {
	q := wire.Question{Path: events.Path + "?" + url.Values{"type": {f.Type}, "pod": {f.Pod}}.Encode()}
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() {
			if errs[i] = m.copyEvents(ctx, node, q); errs[i] != nil && ctx.Err() == nil {
				m.mu.Lock()
				fmt.Fprintf(m.errs, "weir: node %s is no longer followed: %s\n", node, terminal.OneLine(errs[i].Error()))
				m.mu.Unlock()
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil // Ctrl-C is how this ends
	}
	for _, err := range errs {
		if errors.Is(err, agentapi.ErrNoRight) {
			return err
		}
	}
	return errors.New("no node is left to follow")
}

// copyEvents copies one node's events.
func (m *monitor) copyEvents(ctx context.Context, node string, q wire.Question) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := m.ask(ctx, node, q, w)
		if err == nil {
			err = errors.New("the agent ended the stream")
		}
		w.CloseWithError(err)
		done <- err
	}()
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4096), 1<<20)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		if err := m.show(lines.Bytes()); err != nil {
			r.CloseWithError(err)
			cancel()
			<-done //nolint:errcheck // err is why
			return err
		}
	}
	r.Close()
	return <-done
}

// show writes one event. What it says is the node's word: nothing of it gets to the terminal as it
// came.
func (m *monitor) show(line []byte) error {
	var e events.Event
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("an event that is none: %w", err)
	}
	text := terminal.OneLine(e.String()) + "\n"
	if m.json {
		var err error
		if text, err = terminal.JSON(e, ""); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := io.WriteString(m.out, text)
	return err
}
