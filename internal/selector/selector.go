// SPDX-License-Identifier: Apache-2.0

// Package selector parses and evaluates the selector language of the projectcalico.org/v3 API:
//
//	expr    = and { "||" and }
//	and     = unary { "&&" unary }
//	unary   = "!" unary | "(" expr ")" | term
//	term    = "all()" | "global()" | "has(" label ")"
//	        | label "==" string | label "!=" string
//	        | label "in" "{" strings "}" | label "not" "in" "{" strings "}"
//	        | label "contains" string | label "starts" "with" string | label "ends" "with" string
//
// Strings are in single or double quotes, without escapes. An absent label satisfies != and "not
// in", and no other operator.
package selector

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Selector is a parsed selector. It is immutable.
type Selector struct {
	root node
}

// Parse reads a selector. The empty string selects everything. The error says at which column what
// was expected.
func Parse(s string) (*Selector, error) {
	if len(s) > maxLength {
		return nil, fmt.Errorf("selector is %d bytes long, at most %d are allowed", len(s), maxLength)
	}
	p := &parser{lex: lexer{in: s}, text: s}
	p.next()
	if p.tok.kind == tokEOF && p.err == nil {
		return &Selector{root: allNode{}}, nil
	}
	root := p.expr(0)
	if p.err == nil && p.tok.kind != tokEOF {
		p.fail("&&, || or the end")
	}
	if p.err != nil {
		return nil, p.err
	}
	return &Selector{root: root}, nil
}

// Matches reports whether the labels satisfy the selector.
func (s *Selector) Matches(labels map[string]string) bool {
	return s.root.eval(func(label string) (string, bool) { v, ok := labels[label]; return v, ok })
}

// MatchesFunc is Matches for labels that a function looks up.
func (s *Selector) MatchesFunc(labels func(label string) (value string, ok bool)) bool {
	return s.root.eval(labels)
}

// Prefixed returns the selector with a prefix before every label. Where all and global are not nil
// they take the place of all() and global().
func (s *Selector) Prefixed(prefix string, all, global *Selector) *Selector {
	return &Selector{root: s.root.prefixed(&renaming{prefix, all, global})}
}

// Has returns the selector has(label).
func Has(label string) *Selector { return &Selector{root: hasNode{label}} }

// In returns the selector label in {values…}.
func In(label string, values ...string) *Selector {
	sorted := slices.Compact(slices.Sorted(slices.Values(values)))
	if len(sorted) == 1 {
		return &Selector{root: compareNode{label, "==", sorted[0]}}
	}
	return &Selector{root: inNode{label: label, values: sorted}}
}

// Not returns the selector that matches where s does not.
func Not(s *Selector) *Selector { return &Selector{root: notNode{s.root}} }

// And returns the selector that matches where all of these do; nil ones do not count.
func And(of ...*Selector) *Selector {
	list := listNode{and: true}
	for _, s := range of {
		if s != nil {
			list.of = append(list.of, s.root)
		}
	}
	switch len(list.of) {
	case 0:
		return &Selector{root: allNode{}}
	case 1:
		return &Selector{root: list.of[0]}
	}
	return &Selector{root: list}
}

// Requires returns a label and its value that every match has; ok is false when there is none that
// the selector's form says.
func (s *Selector) Requires() (label, value string, ok bool) { return requires(s.root) }

func requires(n node) (label, value string, ok bool) {
	switch n := n.(type) {
	case compareNode:
		return n.label, n.value, n.op == "=="
	case listNode:
		if !n.and {
			return "", "", false
		}
		for _, c := range n.of {
			if label, value, ok = requires(c); ok {
				return label, value, true
			}
		}
	}
	return "", "", false
}

type renaming struct {
	prefix      string
	all, global *Selector
}

// lookup returns the value of a label.
type lookup = func(label string) (string, bool)

// String returns a canonical text: it parses to a selector with the same meaning.
func (s *Selector) String() string {
	var b strings.Builder
	s.root.render(&b)
	return b.String()
}

// Labels returns the label names that the selector looks at, sorted.
func (s *Selector) Labels() []string {
	seen := map[string]bool{}
	s.root.labels(seen)
	out := make([]string, 0, len(seen))
	for l := range seen {
		out = append(out, l)
	}
	sort.Strings(out)
	return out
}

type node interface {
	eval(labels lookup) bool
	prefixed(r *renaming) node
	render(b *strings.Builder)
	labels(seen map[string]bool)
}

type allNode struct{ global bool }

func (allNode) eval(lookup) bool { return true }
func (n allNode) prefixed(r *renaming) node {
	switch {
	case n.global && r.global != nil:
		return r.global.root
	case !n.global && r.all != nil:
		return r.all.root
	}
	return n
}
func (n allNode) render(b *strings.Builder) {
	if n.global {
		b.WriteString("global()")
		return
	}
	b.WriteString("all()")
}
func (allNode) labels(map[string]bool) {}

type hasNode struct{ label string }

func (n hasNode) eval(l lookup) bool          { _, ok := l(n.label); return ok }
func (n hasNode) prefixed(r *renaming) node   { return hasNode{r.prefix + n.label} }
func (n hasNode) render(b *strings.Builder)   { b.WriteString("has(" + n.label + ")") }
func (n hasNode) labels(seen map[string]bool) { seen[n.label] = true }

type notNode struct{ of node }

func (n notNode) eval(l lookup) bool        { return !n.of.eval(l) }
func (n notNode) prefixed(r *renaming) node { return notNode{n.of.prefixed(r)} }
func (n notNode) render(b *strings.Builder) {
	b.WriteString("!")
	n.of.render(b)
}
func (n notNode) labels(seen map[string]bool) { n.of.labels(seen) }

type listNode struct {
	and bool
	of  []node
}

func (n listNode) prefixed(r *renaming) node {
	out := listNode{and: n.and, of: make([]node, len(n.of))}
	for i, c := range n.of {
		out.of[i] = c.prefixed(r)
	}
	return out
}

func (n listNode) eval(l lookup) bool {
	for _, c := range n.of {
		if c.eval(l) != n.and {
			return !n.and
		}
	}
	return n.and
}

func (n listNode) render(b *strings.Builder) {
	op := " || "
	if n.and {
		op = " && "
	}
	b.WriteString("(")
	for i, c := range n.of {
		if i > 0 {
			b.WriteString(op)
		}
		c.render(b)
	}
	b.WriteString(")")
}

func (n listNode) labels(seen map[string]bool) {
	for _, c := range n.of {
		c.labels(seen)
	}
}

type compareNode struct {
	label, op, value string
}

func (n compareNode) prefixed(r *renaming) node {
	return compareNode{r.prefix + n.label, n.op, n.value}
}

func (n compareNode) eval(l lookup) bool {
	v, ok := l(n.label)
	switch n.op {
	case "==":
		return ok && v == n.value
	case "!=":
		return !ok || v != n.value
	case "contains":
		return ok && strings.Contains(v, n.value)
	case "starts with":
		return ok && strings.HasPrefix(v, n.value)
	default:
		return ok && strings.HasSuffix(v, n.value)
	}
}

func (n compareNode) render(b *strings.Builder) {
	b.WriteString(n.label + " " + n.op + " " + quote(n.value))
}
func (n compareNode) labels(seen map[string]bool) { seen[n.label] = true }

type inNode struct {
	label  string
	not    bool
	values []string // sorted
}

func (n inNode) prefixed(r *renaming) node {
	return inNode{label: r.prefix + n.label, not: n.not, values: n.values}
}

func (n inNode) eval(l lookup) bool {
	v, ok := l(n.label)
	if !ok {
		return n.not
	}
	i := sort.SearchStrings(n.values, v)
	return (i < len(n.values) && n.values[i] == v) != n.not
}

func (n inNode) render(b *strings.Builder) {
	b.WriteString(n.label)
	if n.not {
		b.WriteString(" not")
	}
	b.WriteString(" in {")
	for i, v := range n.values {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quote(v))
	}
	b.WriteString("}")
}
func (n inNode) labels(seen map[string]bool) { seen[n.label] = true }

func quote(v string) string {
	if strings.Contains(v, `"`) {
		return "'" + v + "'"
	}
	return `"` + v + `"`
}
