// SPDX-License-Identifier: Apache-2.0

// Package terminal writes for people what came from objects, from nodes and from files, so that
// none of it controls their terminal: OneLine keeps a text from ending a line, JSON escapes what is
// not seen, Text cleans an output of several lines, and Progress shows how a run of measurements
// gets on, by one line that changes where the output is a terminal. It knows neither commands nor
// what they print.
package terminal

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

// OneLine keeps what came from objects, and from nodes, from controlling the terminal: of control
// characters (those from U+0080 to U+009F too), of marks of direction and of everything else that
// is not seen as one character, a space remains.
func OneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, s)
}

// JSON returns a value as JSON with this indent, one line where it is empty, in which the same
// characters are escaped.
func JSON(v any, indent string) (string, error) {
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

// Text is an output for texts of files and of clusters: what would steer a terminal is left out.
type Text struct{ io.Writer }

// Write implements io.Writer.
func (s Text) Write(p []byte) (int, error) {
	clean := strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, string(p))
	if _, err := io.WriteString(s.Writer, clean); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Progress shows how a run gets on: one line that changes on a terminal, a line for each
// measurement elsewhere.
type Progress struct {
	out   io.Writer
	live  bool
	now   string // the line that is on the terminal
	begun string
}

// NewProgress shows a run on out.
func NewProgress(out io.Writer) *Progress {
	f, ok := out.(*os.File)
	return &Progress{out: out, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Say implements suite.Progress.
func (p *Progress) Say(line string) {
	p.clear()
	fmt.Fprintln(p.out, "bench: "+line)
}

// Begin implements suite.Progress.
func (p *Progress) Begin(n, of, round int, row string, left time.Duration) {
	p.begun = fmt.Sprintf("[%d/%d] round %d, %s left: %s", n, of, round, left.Round(time.Second), row)
	if p.live {
		p.clear()
		fmt.Fprint(p.out, p.begun)
		p.now = p.begun
	}
}

// End implements suite.Progress.
func (p *Progress) End(_ string, figure string) {
	p.clear()
	fmt.Fprintf(p.out, "%s: %s\n", p.begun, figure)
}

func (p *Progress) clear() {
	if p.now != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.now = ""
	}
}

// Dash returns a text for a cell of a table: a dash where there is none.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
