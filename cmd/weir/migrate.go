// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/migrate"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/terminal"
)

// migrateFlags are those of weir migrate.
type migrateFlags struct {
	*options
	from, file, output               string
	inPlace, apply, back, yes, force bool
	nodes                            []string
	timeout                          time.Duration
}

func newMigrate(o *options) *cobra.Command {
	f := &migrateFlags{options: o}
	cmd := &cobra.Command{Use: "migrate", Short: "Say what a migration from another network plugin means: what has to be changed before, and what differs afterwards", Args: cobra.NoArgs,
		Long: `migrate --from calico reads the objects of Calico and says what has to be changed before a migration, what differs afterwards,
field by field, and what each node has. Without --apply and --back it changes nothing. The exit code is 1 when something has to be changed before. With -o yaml
it prints the objects of projectcalico.org/v3 that take the place of Calico's, for weir apply -f or kubectl apply -f.

With --in-place the plan is one in which pods keep running, with their addresses and interfaces. --apply shows that plan, asks, and
changes nodes one after the other; it stops at the first that is not well, and may be run again. --back takes nodes back to Calico.

migrate --from flannel does the same with flannel's objects; --apply drains a node before it is changed, and pods of all nodes reach each
other meanwhile.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}}
	cmd.Flags().StringVar(&f.from, "from", "", "the network plugin that is there now: "+strings.Join(pluginNames(), ", "))
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "`file` with recorded objects, as kubectl get -o yaml prints them, in place of a cluster; - is the standard input")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "print the objects that take the place of Calico's, in this format, and not the plan: yaml")
	flags := cmd.Flags()
	flags.BoolVar(&f.inPlace, "in-place", false, "plan a change in which pods keep running")
	flags.BoolVar(&f.apply, "apply", false, "show the plan, and change nodes: from Calico in place, from flannel by drain")
	flags.BoolVar(&f.force, "force", false, "with --from flannel, --apply and --back: pods without a controller may be lost")
	flags.BoolVar(&f.back, "back", false, "take nodes back to what they had before")
	flags.BoolVar(&f.yes, "yes", false, "with --apply and --back: do not ask")
	flags.StringSliceVar(&f.nodes, "node", nil, "with --apply and --back: these `nodes` alone (default: all that are not changed yet)")
	flags.DurationVar(&f.timeout, "timeout", 3*time.Minute, "with --apply and --back: how long each step of a node may take")
	return cmd
}

func (f *migrateFlags) run(ctx context.Context, stdin io.Reader, out, errs io.Writer) error {
	other, ok := otherPlugin(f.from)
	if !ok && f.from != "calico" {
		return fmt.Errorf("--from %q is not supported: it may be %s", f.from, strings.Join(pluginNames(), ", "))
	}
	if f.output != "" && f.output != "yaml" {
		return fmt.Errorf("--output %q is not supported: only yaml is", f.output)
	}
	if f.apply && f.back {
		return fmt.Errorf("--apply and --back exclude each other")
	}
	if ok {
		return f.runOther(ctx, other, stdin, out, errs)
	}
	if f.apply || f.back {
		return f.change(ctx, stdin, out, errs)
	}
	c, err := f.cluster(ctx, stdin)
	if err != nil {
		return err
	}
	plan := calico.New(c)
	if f.inPlace {
		plan = calico.NewInPlace(c)
	}
	if f.output == "" {
		err = printPlan(out, plan)
	} else if err = printCopies(out, plan.Copies); err == nil { // some may be missing
		printFindings(errs, "To be changed before:", plan.Findings, true)
	}
	if err != nil {
		return err
	}
	if plan.Stopped() {
		return errUnhealthy
	}
	return nil
}

// cluster is what the plan is made of: recorded, or that of the API server.
func (f *migrateFlags) cluster(ctx context.Context, stdin io.Reader) (*calico.Cluster, error) {
	if f.file == "" {
		c, err := f.connect()
		if err != nil {
			return nil, err
		}
		return migrate.Read(ctx, c)
	}
	all, err := f.recorded(stdin)
	if err != nil {
		return nil, err
	}
	return calico.FromObjects(all)
}

// recorded reads the file with recorded objects.
func (f *migrateFlags) recorded(stdin io.Reader) ([]*unstructured.Unstructured, error) {
	raw, err := readFile(stdin, f.file)
	if err != nil {
		return nil, err
	}
	all, err := deploy.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.file, err)
	}
	return all, nil
}

// printCopies writes the objects that are copied, as one YAML text.
func printCopies(out io.Writer, copies []*unstructured.Unstructured) error {
	for _, u := range copies {
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			return fmt.Errorf("print %s: %w", objects.Describe(u), err)
		}
		fmt.Fprintf(out, "---\n%s", text)
	}
	return nil
}

// printPlan writes a plan. What it prints came from objects, which a terminal must not obey.
func printPlan(out io.Writer, p *calico.Plan) error {
	if p.Version != "" {
		fmt.Fprintf(out, "Calico %s\n\n", terminal.OneLine(p.Version))
	}
	printFindings(out, "To be changed before:", p.Findings, true)
	printFindings(out, "What differs afterwards:", p.Findings, false)
	printKinds(out, "Copied to projectcalico.org/v3", p.Copies)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPODS\tBLOCKS\tADDRESSES")
	for _, n := range p.Nodes {
		var blocks []string
		for _, b := range n.Blocks {
			blocks = append(blocks, b.CIDR.String())
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\n", terminal.OneLine(n.Name), n.Pods, strings.Join(blocks, ","), n.Addresses())
	}
	return w.Flush()
}

// printKinds writes how many objects of which kinds there are.
func printKinds(out io.Writer, title string, all []*unstructured.Unstructured) {
	count := map[string]int{}
	for _, u := range all {
		count[u.GetKind()]++
	}
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", count[kind], terminal.OneLine(kind)))
	}
	fmt.Fprintf(out, "%s: %s.\n\n", title, strings.Join(kinds, ", "))
}

func printFindings(out io.Writer, title string, findings []calico.Finding, stops bool) {
	written := false
	for _, f := range findings {
		if f.Stops != stops {
			continue
		}
		if !written {
			written = true
			fmt.Fprintln(out, title)
		}
		text := f.Object
		if f.Field != "" {
			text += ", " + f.Field
		}
		if f.Value != "" {
			text += " = " + f.Value
		}
		fmt.Fprintf(out, "  %s: %s\n", terminal.OneLine(text), terminal.OneLine(f.Message))
		if f.Action != "" {
			fmt.Fprintf(out, "    → %s\n", terminal.OneLine(f.Action))
		}
	}
	if written {
		fmt.Fprintln(out)
	}
}
