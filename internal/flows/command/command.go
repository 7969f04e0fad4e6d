// SPDX-License-Identifier: Apache-2.0

// Package command is `weir flows`: which connections there were, asked of the store of flow records
// or of the agents, and all of them as lines of JSON (`weir flows export`). It also has what `weir
// status` says of the store.
package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/flows/ask"
)

// lastRecords is how many records are shown where nothing else is said.
const lastRecords = 10000

// Reach says who is asked: the store and the agents of a node, or of all nodes where it is empty.
type Reach func(ctx context.Context, node string) (*ask.Preferred, error)

// New returns the command, which shows what the store, or nodes, keep of flows.
func New(reach Reach) *cobra.Command {
	var f ask.Options
	cmd := &cobra.Command{Use: "flows", Short: "Show which connections there were, what they carried, and which rule decided", Args: cobra.NoArgs,
		Long: `Show the records that are kept of connections: one for each connection and interval, with the bytes and packets of each
direction, the verdict and the rule that decided. Records are kept while FelixConfiguration spec.flowLogsLocalReporter is Enabled.
The cluster's store of flow records is asked where it is installed (weir install --flows), which has a day of them by default.
Otherwise, and where it does not answer, the agents are: each has the latest 32,768 of its node in memory. Which of them
answered, and what it does not have, is written to the standard error.
ClusterRole weir-viewer has the rights that are needed; agents, not the store, also answer to who has the right to run programs in
the pods of weir-node.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.Question()
			if err != nil {
				return err
			}
			r, err := reader(cmd.Context(), reach, f.Node)
			if err != nil {
				return err
			}
			f.Out, f.Errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return f.Run(cmd.Context(), r, q)
		}}
	which(cmd, &f)
	cmd.Flags().IntVar(&f.Last, "last", lastRecords, "the latest `n` records; 0 is all")
	cmd.Flags().IntVar(&f.Top, "top", 0, "sums of the `n` pairs of ends and ports with most bytes, with --denied of those with most packets; of the store's records the ends are workloads, of agents' pods")
	cmd.Flags().StringVarP(&f.Output, "output", "o", "", "json: one object a line; wide: with what each direction carried and the path")
	cmd.AddCommand(newExport(reach))
	return cmd
}

func newExport(reach Reach) *cobra.Command {
	var f ask.Options
	var file string
	cmd := &cobra.Command{Use: "export", Short: "Write all records of a time as lines of JSON", Args: cobra.NoArgs,
		Long: `Write every record of a time as one line of JSON, as it was made: one for each connection and interval, with the labels that pods
had then; about the oldest first where the store of flow records answers, in no order where agents do.
Of a connection between two nodes each has records. Who is asked is as of weir flows.`,
		Example: "  weir flows export --since 24h --file flows.jsonl\n  weir flows export --since 2h --until 1h --denied",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.Question()
			if err != nil {
				return err
			}
			r, err := reader(cmd.Context(), reach, f.Node)
			if err != nil {
				return err
			}
			return export(cmd.Context(), file, cmd.OutOrStdout(), func(ctx context.Context, out io.Writer) error {
				n, err := ask.Export(ctx, r, q, out, cmd.ErrOrStderr())
				if err == nil && file != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "weir: %d records are in %s\n", n, file)
				}
				return err
			})
		}}
	which(cmd, &f)
	cmd.Flags().StringVarP(&file, "file", "f", "", "`file` to write, which must not be there; empty is the standard output")
	return cmd
}

// export calls what writes, with a file or the standard output. A file is removed again when not
// all is in it.
func export(ctx context.Context, file string, out io.Writer, write func(context.Context, io.Writer) error) (err error) {
	if file != "" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		b := bufio.NewWriterSize(f, 1<<16)
		err = write(ctx, b)
		if err = errors.Join(err, b.Flush(), f.Close()); err != nil {
			return errors.Join(err, os.Remove(file))
		}
		return nil
	}
	b := bufio.NewWriterSize(out, 1<<16)
	return errors.Join(write(ctx, b), b.Flush())
}

// reader is who is asked.
func reader(ctx context.Context, reach Reach, node string) (ask.Reader, error) {
	p, err := reach(ctx, node)
	if err != nil {
		return nil, err
	}
	if node != "" {
		return p.Agents, nil
	}
	return p, nil
}

// which has the flags that say which records are wanted.
func which(cmd *cobra.Command, f *ask.Options) {
	flags := cmd.Flags()
	flags.StringVar(&f.Node, "node", "", "ask the agent of this `node` alone, not the store")
	flags.DurationVar(&f.Since, "since", 0, "only connections that were seen within this time, such as 10m; 0 is all that is kept")
	flags.DurationVar(&f.Until, "until", 0, "only connections that were seen before this time ago, such as 5m")
	flags.BoolVar(&f.Of.Denied, "denied", false, "only what was denied by policy or dropped")
	flags.StringVar(&f.Of.From, "from", "", "only connections that `this` began: an address, a network, a namespace, or namespace/name of a pod or a workload")
	flags.StringVar(&f.Of.To, "to", "", "only connections to `this`, in the same way")
	flags.StringVar(&f.Of.Policy, "policy", "", "only connections on which a rule of this `policy` decided, or would have where it is staged: name or namespace/name")
}
