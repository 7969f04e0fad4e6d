// SPDX-License-Identifier: Apache-2.0

// Package show prints plans of migrations, as people read them, and the objects that take the place
// of another plugin's. What it prints came from objects that anybody may have written, which a
// terminal must not obey.
package show

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/migrate/plan"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/terminal"
)

// Objects writes objects as one YAML text.
func Objects(out io.Writer, copies []*unstructured.Unstructured) error {
	for _, u := range copies {
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			return fmt.Errorf("print %s: %w", objects.Describe(u), err)
		}
		fmt.Fprintf(out, "---\n%s", text)
	}
	return nil
}

// Calico writes a plan of a migration from Calico.
func Calico(out io.Writer, p *calico.Plan) error {
	if p.Version != "" {
		fmt.Fprintf(out, "Calico %s\n\n", terminal.OneLine(p.Version))
	}
	Findings(out, "To be changed before:", p.Findings, true)
	Findings(out, "What differs afterwards:", p.Findings, false)
	kinds(out, "Copied to projectcalico.org/v3", p.Copies)
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

// kinds writes how many objects of which kinds there are.
func kinds(out io.Writer, title string, all []*unstructured.Unstructured) {
	count := map[string]int{}
	for _, u := range all {
		count[u.GetKind()]++
	}
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		names = append(names, fmt.Sprintf("%d %s", count[kind], terminal.OneLine(kind)))
	}
	fmt.Fprintf(out, "%s: %s.\n\n", title, strings.Join(names, ", "))
}

// Findings writes those that stop a migration, or the others.
func Findings(out io.Writer, title string, findings []calico.Finding, stops bool) {
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

// Plan writes a plan of a migration from another plugin.
func Plan(out io.Writer, p *plan.Plan) error {
	fmt.Fprintln(out, terminal.OneLine(strings.TrimSpace(p.Plugin+" "+p.Version)))
	fmt.Fprintln(out)
	Findings(out, "To be changed before:", p.Findings, true)
	Findings(out, "What differs afterwards:", p.Findings, false)
	if len(p.Objects) > 0 {
		kinds(out, "In the place of its settings", p.Objects)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPODS\tNETWORKS")
	for _, n := range p.Nodes {
		fmt.Fprintf(w, "%s\t%d\t%s\n", terminal.OneLine(n.Name), n.Pods, terminal.OneLine(strings.Join(n.Networks, ",")))
	}
	return w.Flush()
}
