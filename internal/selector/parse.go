// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds on input that a user controls: evaluation stays cheap, and recursion shallow.
const (
	maxLength = 16 << 10
	maxDepth  = 64
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokWord
	tokString
	tokPunct // ( ) { } , ! == != && ||
	tokBad
)

type token struct {
	kind tokenKind
	text string
	pos  int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "the end"
	case tokString:
		return "the string " + quote(t.text)
	case tokBad:
		return t.text
	}
	return `"` + t.text + `"`
}

type lexer struct {
	in  string
	pos int
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_./-", c) >= 0
}

func (l *lexer) next() token {
	for l.pos < len(l.in) && strings.IndexByte(" \t\r\n", l.in[l.pos]) >= 0 {
		l.pos++
	}
	start := l.pos
	if start == len(l.in) {
		return token{kind: tokEOF, pos: start}
	}
	c := l.in[start]
	switch {
	case c == '"' || c == '\'':
		end := strings.IndexByte(l.in[start+1:], c)
		if end < 0 {
			l.pos = len(l.in)
			return token{tokBad, "a string without its closing quote", start}
		}
		l.pos = start + end + 2
		return token{tokString, l.in[start+1 : start+1+end], start}
	case wordByte(c):
		for l.pos < len(l.in) && wordByte(l.in[l.pos]) {
			l.pos++
		}
		return token{tokWord, l.in[start:l.pos], start}
	}
	for _, p := range []string{"==", "!=", "&&", "||", "(", ")", "{", "}", ",", "!"} {
		if strings.HasPrefix(l.in[start:], p) {
			l.pos += len(p)
			return token{tokPunct, p, start}
		}
	}
	l.pos = len(l.in)
	return token{tokBad, fmt.Sprintf("the character %q", []rune(l.in[start:])[0]), start}
}

type parser struct {
	lex  lexer
	text string
	tok  token
	err  error
}

func (p *parser) next() { p.tok = p.lex.next() }

func (p *parser) fail(want string) {
	if p.err == nil {
		p.err = fmt.Errorf("selector %q: column %d: found %s, expected %s", p.text, p.tok.pos+1, p.tok, want)
	}
}

func (p *parser) is(kind tokenKind, text string) bool {
	return p.err == nil && p.tok.kind == kind && p.tok.text == text
}

func (p *parser) take(kind tokenKind, text string) bool {
	if !p.is(kind, text) {
		return false
	}
	p.next()
	return true
}

func (p *parser) expect(text string) {
	if !p.take(tokPunct, text) {
		p.fail(`"` + text + `"`)
	}
}

func (p *parser) list(op string, and bool, depth int, item func(int) node) node {
	of := []node{item(depth)}
	for p.take(tokPunct, op) {
		of = append(of, item(depth))
	}
	if len(of) == 1 {
		return of[0]
	}
	return listNode{and: and, of: of}
}

func (p *parser) expr(depth int) node { return p.list("||", false, depth, p.conjunction) }

func (p *parser) conjunction(depth int) node { return p.list("&&", true, depth, p.unary) }

func (p *parser) unary(depth int) node {
	if depth > maxDepth {
		if p.err == nil {
			p.err = fmt.Errorf("selector %q: nested more than %d deep", p.text, maxDepth)
		}
		return allNode{}
	}
	if p.take(tokPunct, "!") {
		return notNode{p.unary(depth + 1)}
	}
	if p.take(tokPunct, "(") {
		n := p.expr(depth + 1)
		p.expect(")")
		return n
	}
	return p.term()
}

func (p *parser) term() node {
	if p.err != nil || p.tok.kind != tokWord {
		p.fail(`a label name, has(…), all(), global(), "!" or "("`)
		return allNode{}
	}
	word := p.tok.text
	p.next()
	if p.take(tokPunct, "(") {
		return p.call(word)
	}
	switch {
	case p.is(tokPunct, "==") || p.is(tokPunct, "!="):
		op := p.tok.text
		p.next()
		return compareNode{word, op, p.string()}
	case p.take(tokWord, "in"):
		return inNode{label: word, values: p.set()}
	case p.take(tokWord, "not"):
		if !p.take(tokWord, "in") {
			p.fail(`"in" after "not"`)
		}
		return inNode{label: word, not: true, values: p.set()}
	case p.take(tokWord, "contains"):
		return compareNode{word, "contains", p.string()}
	case p.is(tokWord, "starts") || p.is(tokWord, "ends"):
		op := p.tok.text
		p.next()
		if !p.take(tokWord, "with") {
			p.fail(`"with" after "` + op + `"`)
		}
		return compareNode{word, op + " with", p.string()}
	}
	p.fail(`==, !=, in, not in, contains, starts with or ends with after the label "` + word + `"`)
	return allNode{}
}

func (p *parser) call(name string) node {
	var n node = allNode{}
	switch name {
	case "all":
	case "global":
		n = allNode{global: true}
	case "has":
		if p.err != nil || p.tok.kind != tokWord {
			p.fail("a label name in has(…)")
			return n
		}
		n = hasNode{p.tok.text}
		p.next()
	default:
		if p.err == nil {
			p.err = fmt.Errorf("selector %q: there is no function %q, only has(…), all() and global()", p.text, name)
		}
	}
	p.expect(")")
	return n
}

func (p *parser) string() string {
	if p.err != nil || p.tok.kind != tokString {
		p.fail("a string in quotes")
		return ""
	}
	s := p.tok.text
	p.next()
	return s
}

func (p *parser) set() []string {
	p.expect("{")
	var out []string
	for p.err == nil && !p.is(tokPunct, "}") {
		out = append(out, p.string())
		if !p.take(tokPunct, ",") {
			break
		}
	}
	p.expect("}")
	slices.Sort(out)
	return slices.Compact(out)
}
