// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// metric is one that is registered.
type metric struct {
	name, kind, help string
	labels           []string
}

// metricSources are the packages that register metrics, by the program that serves them.
var metricSources = []struct {
	program, where string
	dirs           []string
}{
	{"weir-agent", "Served on port 9091 of each node where `prometheusMetricsEnabled` is set ([settings](settings.md)).", []string{"internal/agent", "internal/agent/bgp", "internal/agent/metrics", "internal/agent/nri"}},
	{"weir-controller", "Served at 127.0.0.1:9094 of the controller's nodes, path `/metrics`.", []string{"internal/controller", "internal/controller/bgp", "internal/controller/fanout", "internal/controller/srcdst", "internal/loadbalancer", "internal/relay"}},
	{"weir-fanout", "Served at 127.0.0.1:9095 of the fan-out's nodes, path `/metrics`.", []string{"internal/fanout/server"}},
	{"weir-flows", "Served at 127.0.0.1:9096 of the node of the store of flow records, path `/metrics`.", []string{"internal/flowstore/answer", "internal/flowstore/export", "cmd/weir-flows"}},
	{"weir-ui", "Served at the page's port, path `/metrics`, to who may `get` that path at the API server ([guide](../guides/monitoring.md#the-page)).", []string{"internal/ui/metrics"}},
}

// metrics is a table for each program.
func metrics() (string, error) {
	var page strings.Builder
	page.WriteString("Metrics of the Go runtime and of the process, which Prometheus' library has in every program, are left out.\n")
	for _, src := range metricSources {
		var all []metric
		for _, dir := range src.dirs {
			found, err := metricsOf(dir)
			if err != nil {
				return "", fmt.Errorf("%s: %w", dir, err)
			}
			all = append(all, found...)
		}
		slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", src.program, src.where)
		for _, m := range all {
			labels := make([]string, len(m.labels))
			for i, l := range m.labels {
				labels[i] = code(l)
			}
			fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", code(m.name), m.kind, strings.Join(labels, ", "), cell(m.help))
		}
	}
	return page.String(), nil
}

// metricsOf reads what a package registers out of its source. Three forms are known:
// describe("name", "help", labels…), which the agent has, with the type that the collector
// gives it; options of Prometheus' library with literals; and a function that makes these options
// of a name and a help. Any other use of the library is an error, so that none is missed.
func metricsOf(dir string) (found []metric, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			return nil, err
		}
		r := &reader{kinds: kindsOf(file), makers: map[string]maker{}}
		ast.Inspect(file, r.visit)
		if r.err != nil {
			return nil, fmt.Errorf("%s: %w", name, r.err)
		}
		found = append(found, r.found...)
	}
	if len(found) == 0 {
		return nil, errors.New("no metric is found")
	}
	return found, nil
}

// kindsOf returns the types of what a collector emits: gauge(desc, …) and count(desc, …).
func kindsOf(file *ast.File) map[string]string {
	kinds := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		desc, ok := call.Args[0].(*ast.Ident)
		if !ok {
			return true
		}
		switch name(call.Fun) {
		case "gauge":
			kinds[desc.Name] = "gauge"
		case "count":
			kinds[desc.Name] = "counter"
		}
		return true
	})
	return kinds
}

// reader collects the metrics of one file.
type reader struct {
	kinds  map[string]string // by the variable of a description
	makers map[string]maker  // functions that make a metric of a name and a help
	found  []metric
	err    error
}

func (r *reader) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, v := range n.Values {
			if call, ok := v.(*ast.CallExpr); ok && name(call.Fun) == "describe" {
				r.add("weir_", r.kinds[n.Names[i].Name], call.Args[0], call.Args[1], call.Args[2:])
			}
		}
	case *ast.AssignStmt:
		for i, v := range n.Rhs {
			if f, ok := v.(*ast.FuncLit); ok && len(n.Lhs) == len(n.Rhs) {
				if kind := makes(f); kind != "" {
					r.makers[name(n.Lhs[i])] = maker{kind, namespaceIn(f)}
					return false
				}
			}
		}
	case *ast.CallExpr:
		if m, ok := r.makers[name(n.Fun)]; ok {
			r.add(m.namespace+"_", m.kind, n.Args[0], n.Args[1], nil)
		} else if kind := kindOf(n); kind != "" {
			r.options(kind, n)
		}
	}
	return r.err == nil
}

// maker is what the metrics of a function have in common.
type maker struct{ kind, namespace string }

// namespaceIn returns the namespace of the options that a function makes.
func namespaceIn(f *ast.FuncLit) (namespace string) {
	ast.Inspect(f, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok && name(kv.Key) == "Namespace" {
			namespace = text(kv.Value)
		}
		return namespace == ""
	})
	return namespace
}

// options reads prometheus.NewX(prometheus.XOpts{Namespace: …, Name: …, Help: …}, labels).
func (r *reader) options(kind string, call *ast.CallExpr) {
	literal, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		r.err = fmt.Errorf("options of a %s are no literal", kind)
		return
	}
	fields := map[string]ast.Expr{}
	for _, e := range literal.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			fields[name(kv.Key)] = kv.Value
		}
	}
	var labels []ast.Expr
	if strings.HasSuffix(name(call.Fun), "Vec") {
		if list, ok := call.Args[1].(*ast.CompositeLit); ok {
			labels = list.Elts
		}
	}
	r.add(text(fields["Namespace"])+"_", kind, fields["Name"], fields["Help"], labels)
}

func (r *reader) add(prefix, kind string, metricName, help ast.Expr, labels []ast.Expr) {
	m := metric{name: prefix + text(metricName), kind: kind, help: text(help)}
	for _, l := range labels {
		m.labels = append(m.labels, text(l))
	}
	if m.name == prefix || strings.HasPrefix(prefix, "_") || m.help == "" || kind == "" || slices.Contains(m.labels, "") {
		r.err = fmt.Errorf("metric %q cannot be read: type %q, help %q, labels %q", m.name, kind, m.help, m.labels)
		return
	}
	r.found = append(r.found, m)
}

// makes returns the type of the metric that a function makes of its parameters; empty where it
// makes none.
func makes(f *ast.FuncLit) (kind string) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && kind == "" {
			kind = kindOf(call)
		}
		return true
	})
	return kind
}

// kindOf returns the type of the metric that a call of Prometheus' library makes.
func kindOf(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || name(sel.X) != "prometheus" {
		return ""
	}
	for _, kind := range []string{"Counter", "Gauge", "Histogram", "Summary"} {
		if strings.HasPrefix(sel.Sel.Name, "New"+kind) {
			return strings.ToLower(kind)
		}
	}
	return ""
}

// name is that of an identifier, or of what a selector selects.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// text is the value of a literal.
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}
