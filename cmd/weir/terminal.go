// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
)

// oneLine keeps what came from objects, and from nodes, from controlling the terminal: of control
// characters (those from U+0080 to U+009F too), of marks of direction and of everything else that
// is not seen as one character, a space remains.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, s)
}

// printableJSON writes a value as JSON with this indent, one line where it is empty, in which the
// same characters are escaped.
func printableJSON(v any, indent string) (string, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	var out strings.Builder
	for _, c := range text.String() {
		switch {
		case unicode.IsPrint(c) || c == '\n': // between values alone: in strings it is escaped
			out.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String(), nil
}

// progress shows how a run gets on: one line that changes on a terminal, a line for each
// measurement elsewhere.
type progress struct {
	out   io.Writer
	live  bool
	now   string // the line that is on the terminal
	begun string
}

func newProgress(out io.Writer) *progress {
	f, ok := out.(*os.File)
	return &progress{out: out, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Say implements suite.Progress.
func (p *progress) Say(line string) {
	p.clear()
	fmt.Fprintln(p.out, "bench: "+line)
}

// Begin implements suite.Progress.
func (p *progress) Begin(n, of, round int, row string, left time.Duration) {
	p.begun = fmt.Sprintf("[%d/%d] round %d, %s left: %s", n, of, round, left.Round(time.Second), row)
	if p.live {
		p.clear()
		fmt.Fprint(p.out, p.begun)
		p.now = p.begun
	}
}

// End implements suite.Progress.
func (p *progress) End(_ string, figure string) {
	p.clear()
	fmt.Fprintf(p.out, "%s: %s\n", p.begun, figure)
}

func (p *progress) clear() {
	if p.now != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.now = ""
	}
}
