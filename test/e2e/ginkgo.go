// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// specs runs specs of a group and reports how each ended, when it ended, and again at the end with
// what was wrong. What was under way when ctx ended is not reported.
func (l *lab) specs(ctx context.Context, t task, name string, o options, report func(spec)) error {
	log := strings.TrimSuffix(o.out, ".json") + "-" + name + ".log"
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	reports := filepath.Join(l.dir, "reports-"+name)
	if err := os.MkdirAll(reports, 0o755); err != nil {
		return err
	}
	procs := o.procs
	if t.Procs > 0 {
		procs = t.Procs
	}
	fmt.Printf("e2e: group %s, %d specs, %d processes; the log is %s\n", name, len(t.Specs), procs, log)
	c := l.in(ctx, t.from(), l.ginkgo(t, o.settings, procs, reports)...)
	p := &progress{group: t.Name, specs: t.Specs, serial: procs == 1, began: time.Now(), to: os.Stdout, report: report}
	c.Stdout = io.MultiWriter(f, p)
	c.Stderr = f
	runErr := c.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	found, err := readReports(reports)
	if err != nil {
		return fmt.Errorf("reading the reports (the run ended with: %v; see %s): %w", runErr, log, err)
	}
	for _, s := range outcomes(t, found) {
		report(s)
	}
	return nil
}

// from is the machine that the specs run on: the furthest away, except in a plain lab.
func (t task) from() string {
	if t.Plain {
		return "cp"
	}
	return far
}

// ginkgo is the command line for the specs of a group.
func (l *lab) ginkgo(t task, s settings, procs int, reports string) []string {
	host := apiProxy
	if t.Plain {
		host = families[s.Family].apiServer
	}
	// The specs leave temporary files: they go with our folder.
	return []string{"env", "TMPDIR=" + l.dir,
		filepath.Join(l.programs, "ginkgo"), fmt.Sprintf("--procs=%d", procs), "--focus=" + exactly(t.Specs),
		"--no-color", "-v", "--silence-skips", "--timeout=3h", filepath.Join(l.programs, "e2e.test"), "--",
		"--host=https://" + host, "--provider=skeleton", fmt.Sprintf("--num-nodes=%d", t.Workers), "--node-os-distro=debian", "--dns-domain=cluster.local",
		"--report-dir=" + reports, "--kubectl-path=" + filepath.Join(l.programs, "kubectl"),
		"--disable-log-dump=true", "--delete-namespace-on-failure=true"}
}

// exactly is an expression that the texts of these specs match and no other. Ginkgo puts the
// suite's name before a text, so only its end can be tied.
func exactly(specs []string) string {
	quoted := make([]string, len(specs))
	for i, s := range specs {
		quoted[i] = regexp.QuoteMeta(s)
	}
	return `(` + strings.Join(quoted, "|") + `)\s*$`
}

// progress reads ginkgo's log as it is written, and prints a line for each spec that ended.
type progress struct {
	group string
	specs []string
	began time.Time
	to    io.Writer

	rest         []byte
	serial       bool   // one process: a spec's name is written when it begins, else after the line that says how it ended
	current      string // the name that was written last; of one process
	mark, took   string // of the spec whose name comes next
	done, failed int
	report       func(spec)
}

// ended is the first line of a spec's part of the log.
var ended = regexp.MustCompile(`^(•|S|P)( \[[A-Z ]+\])? \[([0-9.]+) seconds\]`)

// node is what ginkgo puts into the name of a spec that failed: the part of it that did.
var node = regexp.MustCompile(` \[(It|(Just)?(Before|After)Each|DeferCleanup \(Each\))\]`)

func (p *progress) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		p.line(strings.TrimSpace(string(p.rest[:i])))
		p.rest = p.rest[i+1:]
	}
}

func (p *progress) line(text string) {
	if m := ended.FindStringSubmatch(text); m != nil {
		p.mark, p.took = "ok", m[3]
		if m[2] != "" {
			p.mark = strings.ToLower(strings.Trim(m[2], " []"))
		}
		if p.serial && p.current != "" {
			p.reportOf(p.current)
		}
		return
	}
	if p.mark == "" && !p.serial {
		return
	}
	text = node.ReplaceAllString(text, "")
	name := ""
	for _, s := range p.specs {
		if strings.HasPrefix(text, s) && len(s) > len(name) {
			name = s
		}
	}
	if name == "" {
		return
	}
	if p.serial {
		p.current = name
		return
	}
	p.reportOf(name)
}

// reportOf reports how the named spec ended.
func (p *progress) reportOf(name string) {
	if p.mark == "interrupted" {
		p.mark = ""
		return
	}
	p.done++
	s := spec{Name: name, Group: p.group, Outcome: passed}
	_, _ = fmt.Sscan(p.took, &s.Seconds) // 0 where it does not say
	if p.mark != "ok" {
		p.failed++
		s.Outcome = failed
	}
	if p.mark == "skipped" {
		s.Outcome = skipped
	}
	p.report(s)
	fmt.Fprintf(p.to, "e2e: %-5s %5.0f s  %3d/%d  %d not ok  %-8s %6s s  %s\n", p.group, time.Since(p.began).Seconds(), p.done, len(p.specs), p.failed, p.mark, p.took, name)
	p.mark = ""
}
