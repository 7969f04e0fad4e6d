// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agent/fromcalico"
	"github.com/weir-net/weir/internal/migrate"
	"github.com/weir-net/weir/internal/migrate/flannel"
	"github.com/weir-net/weir/internal/migrate/nodes"
	"github.com/weir-net/weir/internal/migrate/plan"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/terminal"
)

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
