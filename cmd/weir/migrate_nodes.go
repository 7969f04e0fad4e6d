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
	"text/tabwriter"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agent/fromcalico"
	"github.com/weir-net/weir/internal/migrate"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/migrate/flannel"
	"github.com/weir-net/weir/internal/migrate/nodes"
	"github.com/weir-net/weir/internal/migrate/plan"
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
	change := &nodes.Change{Clients: c, Cluster: cluster, Out: out, Timeout: f.timeout}
	done := func(n *corev1.Node) bool { return nodes.Network(n) == f.wanted() }
	return f.step(ctx, stdin, out, errs, cluster.Nodes, done, "Calico", "while pods run", change)
}

// wanted is the label of a node that is changed as the user asked.
func (f *migrateFlags) wanted() string {
	if f.back {
		return ""
	}
	return deploy.NetworkWeir
}

// changer changes nodes from a network plugin to Weir and back.
type changer interface {
	Prepare(ctx context.Context) error
	Forward(ctx context.Context, node string) error
	Back(ctx context.Context, node string) error
}

// step asks, and changes the nodes that are not done, one after the other.
func (f *migrateFlags) step(ctx context.Context, stdin io.Reader, out, errs io.Writer, all []corev1.Node, done func(*corev1.Node) bool, plugin, how string, c changer) error {
	names, err := f.chosen(all, done)
	if err != nil || len(names) == 0 {
		if err == nil {
			fmt.Fprintln(out, "\nNo node is left to be changed.")
		}
		return err
	}
	to := "from " + plugin + " to Weir"
	if f.back {
		to = "back to " + plugin
	}
	fmt.Fprintf(out, "\nTo be changed %s, in this order, %s: %s\n", to, how, terminal.OneLine(strings.Join(names, ", ")))
	if !f.yes {
		fmt.Fprint(out, "Change them? [y/N] ")
		if line, err := bufio.NewReader(stdin).ReadString('\n'); err != nil || strings.TrimSpace(line) != "y" {
			return errors.New("nothing was changed")
		}
	}
	change := c.Forward
	if f.back {
		change = c.Back
	} else if err := c.Prepare(ctx); err != nil {
		return err
	}
	for _, name := range names {
		if err := change(ctx, name); err != nil {
			fmt.Fprintf(errs, "stopped at node %s; the others are as they were. Run the same command again when the cause is gone, or take the node back: weir migrate --from %s --back --node %s\n",
				terminal.OneLine(name), f.from, terminal.OneLine(name))
			return err
		}
	}
	return nil
}

// chosen are the nodes that are to be changed, by name: all that are not yet, or those that the
// user names.
func (f *migrateFlags) chosen(list []corev1.Node, done func(*corev1.Node) bool) ([]string, error) {
	var all, out []string
	for i := range list {
		n := &list[i]
		all = append(all, n.Name)
		if named := slices.Contains(f.nodes, n.Name); named || !done(n) && len(f.nodes) == 0 {
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
	if other, ok := otherPlugin(f.From); ok {
		return otherObjects(ctx, out, c, other)
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
		return fmt.Errorf("look for nodes that still have another network plugin: %w", err)
	}
	if len(list.Items) > 0 {
		from := fromOf(ds)
		return fmt.Errorf("node %s still has %s: change it first (weir migrate --from %s --apply), or go on with --from %s", list.Items[0].Name, from, from, from)
	}
	return nil
}

// otherPlugin is a network plugin by its name; Calico is none of them.
func otherPlugin(name string) (migrate.Plugin, bool) {
	for _, p := range migrate.Plugins {
		if p.Name == name {
			return p, true
		}
	}
	return migrate.Plugin{}, false
}

// pluginNames are the values of weir migrate --from.
func pluginNames() []string {
	out := []string{"calico"}
	for _, p := range migrate.Plugins {
		out = append(out, p.Name)
	}
	return out
}

// runOther plans a migration from another plugin than Calico, and makes it where that can be done.
func (f *migrateFlags) runOther(ctx context.Context, of migrate.Plugin, stdin io.Reader, out, errs io.Writer) error {
	change := f.apply || f.back
	switch {
	case f.inPlace:
		return fmt.Errorf("--in-place: nodes with %s are drained", of.Name)
	case change && (f.file != "" || f.output != ""):
		return errors.New("--apply and --back change a cluster: -f and -o have no meaning with them")
	case change && !of.Apply:
		return fmt.Errorf("--apply and --back: nodes with %s and nodes with Weir do not reach each other's pods, so they are not changed one by one; the plan says what a change of the whole cluster means", of.Name)
	}
	var all []*unstructured.Unstructured
	var c *clientset.Clients
	var err error
	if f.file != "" {
		all, err = f.recorded(stdin)
	} else if c, err = f.connect(); err == nil {
		all, err = of.Objects(ctx, c)
	}
	if err != nil {
		return err
	}
	p, err := of.Plan(all)
	if err != nil {
		return err
	}
	if f.output == "" {
		err = printOther(out, p)
	} else if err = printCopies(out, p.Objects); err == nil { // some may be missing
		printFindings(errs, "To be changed before:", p.Findings, true)
	}
	if err != nil {
		return err
	}
	if p.Stopped() && !f.back {
		return errUnhealthy
	}
	if !change {
		return nil
	}
	cluster, err := flannel.FromObjects(all)
	if err != nil {
		return err
	}
	return f.step(ctx, stdin, out, errs, cluster.Nodes, func(n *corev1.Node) bool { return nodes.Network(n) == f.wanted() && !nodes.Cordoned(n) }, of.Name, "each of them drained before",
		&nodes.FromFlannel{Change: nodes.Change{Clients: c, Out: out, Timeout: f.timeout}, Flannel: cluster, Force: f.force})
}

// printOther writes a plan. What it prints came from objects, which a terminal must not obey.
func printOther(out io.Writer, p *plan.Plan) error {
	fmt.Fprintln(out, terminal.OneLine(strings.TrimSpace(p.Plugin+" "+p.Version)))
	fmt.Fprintln(out)
	printFindings(out, "To be changed before:", p.Findings, true)
	printFindings(out, "What differs afterwards:", p.Findings, false)
	if len(p.Objects) > 0 {
		printKinds(out, "In the place of its settings", p.Objects)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPODS\tNETWORKS")
	for _, n := range p.Nodes {
		fmt.Fprintf(w, "%s\t%d\t%s\n", terminal.OneLine(n.Name), n.Pods, terminal.OneLine(strings.Join(n.Networks, ",")))
	}
	return w.Flush()
}

// otherObjects stores what takes the place of another plugin's settings.
func otherObjects(ctx context.Context, out io.Writer, c *clientset.Clients, of migrate.Plugin) error {
	all, err := of.Objects(ctx, c)
	if err != nil {
		return err
	}
	p, err := of.Plan(all)
	if err != nil {
		return err
	}
	if p.Stopped() {
		printFindings(out, "To be changed before:", p.Findings, true)
		return errUnhealthy
	}
	fmt.Fprintf(out, "applying %d objects that take the place of %s's settings\n", len(p.Objects), of.Name)
	return objects.ApplyAll(ctx, out, c.Dynamic, p.Objects, fieldManager)
}

// fromOf is the plugin from which agents take their nodes over.
func fromOf(ds *appsv1.DaemonSet) string {
	for _, c := range ds.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == fromcalico.Environment {
				return e.Value
			}
		}
	}
	return fromcalico.Plugin
}
