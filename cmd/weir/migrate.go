// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/migrate"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/migrate/show"
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
		err = show.Calico(out, plan)
	} else if err = show.Objects(out, plan.Copies); err == nil { // some may be missing
		show.Findings(errs, "To be changed before:", plan.Findings, true)
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
