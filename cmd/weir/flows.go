// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/terminal"
)

// newFlows shows what nodes keep of flows.
func newFlows(o *options) *cobra.Command {
	var node, output string
	var since time.Duration
	var top int
	var filter flows.Filter
	cmd := &cobra.Command{Use: "flows", Short: "Show which connections there were, what they carried, and which rule decided", Args: cobra.NoArgs,
		Long: `Show the records that nodes keep of connections: one for each connection and interval, with the bytes and packets of each
direction, the verdict and the rule that decided. Records are kept while FelixConfiguration spec.flowLogsLocalReporter is Enabled,
in the memory of the agents: the latest 32,768 of each node. What a node has not kept is said at the end.
ClusterRole weir-viewer has the rights that are needed, or the right to run programs in the pods of weir-node.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "wide" {
				return fmt.Errorf("output %q: json, wide, or none for text", output)
			}
			if since < 0 || top < 0 {
				return errors.New("--since and --top are not negative")
			}
			if since > 0 {
				filter.Since = time.Now().Add(-since)
			}
			if err := filter.Check(); err != nil {
				return err
			}
			clients, err := o.connect()
			if err != nil {
				return err
			}
			asker, err := o.asker(clients)
			if err != nil {
				return err
			}
			nodes := []string{node}
			if node == "" {
				list, err := clients.Kube.CoreV1().Nodes().List(cmd.Context(), metav1.ListOptions{})
				if err != nil {
					return fmt.Errorf("list nodes: %w", err)
				}
				nodes = namesOf(list.Items)
			}
			f := &flowsShown{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), output: output, top: top, ask: asker.Ask}
			return f.run(cmd.Context(), nodes, filter)
		}}
	cmd.Flags().StringVar(&node, "node", "", "only records of this `node`")
	cmd.Flags().DurationVar(&since, "since", 0, "only connections that were seen within this time, such as 10m; 0 is all that is kept")
	cmd.Flags().BoolVar(&filter.Denied, "denied", false, "only what was denied by policy or dropped")
	cmd.Flags().StringVar(&filter.From, "from", "", "only connections that `this` began: an address, a network, a namespace, or namespace/name of a pod or a workload")
	cmd.Flags().StringVar(&filter.To, "to", "", "only connections to `this`, in the same way")
	cmd.Flags().StringVar(&filter.Policy, "policy", "", "only connections on which a rule of this `policy` decided, or would have where it is staged: name or namespace/name")
	cmd.Flags().IntVar(&top, "top", 0, "sums of the `n` pairs of ends and ports with most bytes, with --denied of those with most packets")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: one object a line; wide: with what each direction carried and the path")
	return cmd
}

// flowsShown writes records of nodes.
type flowsShown struct {
	out, errs io.Writer
	output    string
	top       int
	ask       func(ctx context.Context, node string, q wire.Question, out io.Writer) error
}

func (s *flowsShown) run(ctx context.Context, nodes []string, f flows.Filter) error {
	q := wire.Question{Path: flows.Path + "?" + f.Query().Encode()}
	found := make([][]*flows.Flow, len(nodes))
	status := make([]*flows.Status, len(nodes))
	errs := agentapi.Each(nodes, func(i int, node string) (err error) {
		var answer bytes.Buffer
		if err := s.ask(ctx, node, q, &answer); err != nil {
			return err
		}
		found[i], status[i], err = readFlows(&answer)
		return err
	})
	failed := 0
	for i, err := range errs {
		if errors.Is(err, agentapi.ErrNoRight) {
			return err
		}
		if err != nil {
			failed++
			fmt.Fprintf(s.errs, "weir: node %s has no answer: %s\n", nodes[i], terminal.OneLine(err.Error()))
		}
	}
	if failed == len(nodes) {
		return errors.New("no node answered")
	}
	all := slices.Concat(found...)
	slices.SortStableFunc(all, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	if err := s.show(all, f.Denied); err != nil {
		return err
	}
	for _, st := range status {
		if st == nil {
			continue
		}
		var lost []string
		for _, why := range slices.Sorted(maps.Keys(st.Lost)) {
			if n := st.Lost[why]; n > 0 {
				lost = append(lost, fmt.Sprintf("%d (%s)", n, why))
			}
		}
		if len(lost) > 0 {
			fmt.Fprintf(s.errs, "weir: node %s\n", terminal.OneLine(fmt.Sprintf("%s: records that it does not keep: %s", st.Node, strings.Join(lost, ", "))))
		}
	}
	return nil
}

// readFlows reads an agent's answer.
func readFlows(r io.Reader) (out []*flows.Flow, status *flows.Status, err error) {
	for d := json.NewDecoder(r); ; {
		var l flows.Line
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF) && status != nil:
			return out, status, nil
		case errors.Is(err, io.EOF):
			return nil, nil, errors.New("the answer ends early")
		case err != nil:
			return nil, nil, fmt.Errorf("an answer that is none: %w", err)
		}
		if l.Flow != nil {
			out = append(out, l.Flow)
		}
		if l.Status != nil {
			status = l.Status
		}
	}
}

// show writes records. What they say is the node's word: nothing of it gets to the terminal as it
// came.
func (s *flowsShown) show(all []*flows.Flow, denied bool) error {
	if s.top > 0 {
		return s.showTop(all, denied)
	}
	for _, f := range all {
		text := terminal.OneLine(f.String())
		switch s.output {
		case "json":
			line, err := terminal.JSON(f, "")
			if err != nil {
				return err
			}
			text = strings.TrimSuffix(line, "\n")
		case "wide":
			text = terminal.OneLine(fmt.Sprintf("%s; sent %d packets, %d bytes; received %d packets, %d bytes; path %s/%s; %s", f, f.Sent.Packets, f.Sent.Bytes,
				f.Received.Packets, f.Received.Bytes, cmp.Or(f.Path, "-"), cmp.Or(f.Return, "-"), cmp.Or(f.Ended, "open")))
		}
		if _, err := fmt.Fprintln(s.out, text); err != nil {
			return err
		}
	}
	return nil
}

// pair is what --top sums by.
type pair struct {
	From, To, Protocol string
	Port               uint16
	Verdict, Rule      string
}

type sum struct {
	pair
	Packets, Bytes uint64
}

// topOf sums by pairs. A connection between two nodes has records of both: what the node says
// counts that has seen most of the pair.
func topOf(all []*flows.Flow, n int, denied bool) []sum {
	byNode := map[pair]map[string]sum{}
	for _, f := range all {
		p := pair{From: f.Source.String(), To: f.Destination.String(), Protocol: f.Protocol, Port: f.Destination.Port, Verdict: f.Verdict}
		if f.Rule != nil && f.Verdict != flows.Allowed {
			p.Rule = f.Rule.String()
		}
		if byNode[p] == nil {
			byNode[p] = map[string]sum{}
		}
		s := byNode[p][f.Node]
		s.pair = p
		s.Packets += f.Sent.Packets + f.Received.Packets
		s.Bytes += f.Sent.Bytes + f.Received.Bytes
		byNode[p][f.Node] = s
	}
	most := func(a, b sum) int {
		if denied {
			return cmp.Or(-cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.From+a.To, b.From+b.To))
		}
		return cmp.Or(-cmp.Compare(a.Bytes, b.Bytes), -cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.From+a.To, b.From+b.To))
	}
	var out []sum
	for _, nodes := range byNode {
		out = append(out, slices.MinFunc(slices.Collect(maps.Values(nodes)), most))
	}
	slices.SortFunc(out, most)
	return out[:min(n, len(out))]
}

func (s *flowsShown) showTop(all []*flows.Flow, denied bool) error {
	top := topOf(all, s.top, denied)
	if s.output == "json" {
		for _, t := range top {
			line, err := terminal.JSON(t, "")
			if err != nil {
				return err
			}
			if _, err := io.WriteString(s.out, line); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "FROM\tTO\tPORT\tPACKETS\tBYTES\tVERDICT")
	for _, t := range top {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", terminal.OneLine(t.From), terminal.OneLine(t.To), terminal.OneLine(fmt.Sprintf("%s:%d", t.Protocol, t.Port)), t.Packets, t.Bytes,
			terminal.OneLine(strings.TrimSpace(t.Verdict+" "+t.Rule)))
	}
	return w.Flush()
}
