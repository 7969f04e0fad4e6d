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
// Strings are in single or double quotes, without escapes. An absent label satisfies != and "not in",
// and no other operator.
package selector

import (
	"fmt"
	"sort"
	"strings"
)

// Selector is a parsed selector. It is immutable.
type Selector struct {
	root node
}

// Parse reads a selector. The empty string selects everything. The error says at which column what was
// expected.
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
func (s *Selector) Matches(labels map[string]string) bool { return s.root.eval(labels) }

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
	eval(labels map[string]string) bool
	render(b *strings.Builder)
	labels(seen map[string]bool)
}

type allNode struct{ global bool }

func (allNode) eval(map[string]string) bool { return true }
func (n allNode) render(b *strings.Builder) {
	if n.global {
		b.WriteString("global()")
		return
	}
	b.WriteString("all()")
}
func (allNode) labels(map[string]bool) {}

type hasNode struct{ label string }

func (n hasNode) eval(l map[string]string) bool { _, ok := l[n.label]; return ok }
func (n hasNode) render(b *strings.Builder)     { b.WriteString("has(" + n.label + ")") }
func (n hasNode) labels(seen map[string]bool)   { seen[n.label] = true }

type notNode struct{ of node }

func (n notNode) eval(l map[string]string) bool { return !n.of.eval(l) }
func (n notNode) render(b *strings.Builder) {
	b.WriteString("!")
	n.of.render(b)
}
func (n notNode) labels(seen map[string]bool) { n.of.labels(seen) }

type listNode struct {
	and bool
	of  []node
}

func (n listNode) eval(l map[string]string) bool {
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

func (n compareNode) eval(l map[string]string) bool {
	v, ok := l[n.label]
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

func (n inNode) eval(l map[string]string) bool {
	v, ok := l[n.label]
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
