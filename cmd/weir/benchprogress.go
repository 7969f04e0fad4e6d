// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

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
