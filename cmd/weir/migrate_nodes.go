// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agent/fromcalico"
	"github.com/weir-net/weir/internal/migrate"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/migrate/nodes"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/terminal"
)

// change changes nodes while their pods run, after it has shown the plan, and stops at the first
// that is not well.
func (f *migrateFlags) change(ctx context.Context, stdin io.Reader, out, errs io.Writer) error {
	if f.file != "" || f.output != "" {
		return errors.New("--apply and --back change a cluster: -f and -o have no meaning with them")
	}
	c, err := f.connect()
	if err != nil {
		return err
	}
	cluster, err := migrate.Read(ctx, c)
	if err != nil {
		return err
	}
	plan := calico.NewInPlace(cluster)
	if err := printPlan(out, plan); err != nil {
		return err
	}
	if plan.Stopped() && !f.back {
		return errUnhealthy
	}
	names, err := f.chosen(cluster)
	if err != nil || len(names) == 0 {
		if err == nil {
			fmt.Fprintln(out, "\nNo node is left to be changed.")
		}
		return err
	}
	to := "from Calico to Weir"
	if f.back {
		to = "back to Calico"
	}
	fmt.Fprintf(out, "\nTo be changed %s, in this order, while pods run: %s\n", to, terminal.OneLine(strings.Join(names, ", ")))
	if !f.yes {
		fmt.Fprint(out, "Change them? [y/N] ")
		if line, err := bufio.NewReader(stdin).ReadString('\n'); err != nil || strings.TrimSpace(line) != "y" {
			return errors.New("nothing was changed")
		}
	}
	change := &nodes.Change{Clients: c, Cluster: cluster, Out: out, Timeout: f.timeout}
	step := change.Forward
	if f.back {
		step = change.Back
	} else if err := change.Prepare(ctx); err != nil {
		return err
	}
	for _, name := range names {
		if err := step(ctx, name); err != nil {
			fmt.Fprintf(errs, "stopped at node %s; the others are as they were. Run the same command again when the cause is gone, or take the node back: weir migrate --from calico --back --node %s\n",
				terminal.OneLine(name), terminal.OneLine(name))
			return err
		}
	}
	return nil
}

// chosen are the nodes that are to be changed, by name: all that are not yet, or those that the
// user names.
func (f *migrateFlags) chosen(c *calico.Cluster) ([]string, error) {
	var all, out []string
	for i := range c.Nodes {
		n := &c.Nodes[i]
		all = append(all, n.Name)
		done := nodes.Network(n) == deploy.NetworkWeir
		if f.back {
			done = nodes.Network(n) == ""
		}
		if named := slices.Contains(f.nodes, n.Name); named || !done && len(f.nodes) == 0 {
			out = append(out, n.Name)
		}
	}
	for _, name := range f.nodes {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("--node %s: there is no such node", name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// started says what comes next where nothing is waited for.
func (f *installFlags) started() string {
	if f.From != "" {
		return "No node is changed yet: weir migrate --from " + f.From + " --apply does that."
	}
	return "Weir is being started; see `weir status`."
}

// fromOther stores the objects that take the place of another plugin's, before agents read them.
func (f *installFlags) fromOther(ctx context.Context, out io.Writer, c *clientset.Clients) error {
	if f.From == "" {
		return allChanged(ctx, c)
	}
	cluster, err := migrate.Read(ctx, c)
	if err != nil {
		return err
	}
	plan := calico.NewInPlace(cluster)
	if plan.Stopped() {
		printFindings(out, "To be changed before:", plan.Findings, true)
		return errUnhealthy
	}
	fmt.Fprintf(out, "applying %d objects that take the place of Calico's\n", len(plan.Copies))
	return objects.ApplyAll(ctx, out, c.Dynamic, plan.Copies, fieldManager)
}

// allChanged refuses an installation on all nodes while some still have the plugin that this one
// comes in the place of.
func allChanged(ctx context.Context, c *clientset.Clients) error {
	ds, err := c.Kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, "weir-node", metav1.GetOptions{})
	if err != nil || ds.Spec.Template.Spec.NodeSelector[deploy.NetworkLabel] == "" {
		return nil //nolint:nilerr // there is none, or what is applied next says what is wrong
	}
	list, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: deploy.NetworkLabel + "!=" + deploy.NetworkWeir})
	if err != nil {
		return fmt.Errorf("look for nodes that still have %s: %w", fromcalico.Plugin, err)
	}
	if len(list.Items) > 0 {
		return fmt.Errorf("node %s still has Calico: change it first (weir migrate --from calico --apply), or go on with --from calico", list.Items[0].Name)
	}
	return nil
}
