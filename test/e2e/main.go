// Command e2e runs Kubernetes' own end-to-end specs against Weir in the lab: it brings a lab up, runs the
// upstream e2e.test with a focus, compares what failed with the list of specs that are known not to
// pass, and writes out/e2e.json. It exits 1 when a spec fails that is not listed, or a listed one passes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"
)

// Result is out/e2e.json.
type Result struct {
	Suite    string   `json:"suite"`
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Skipped  int      `json:"skipped"`
	Failures []string `json:"failures"`
	Known    []string `json:"known_failures"`
	Seconds  float64  `json:"seconds"`
}

type options struct {
	lab, focus, skip, proxy, known, out string
	procs                               int
	keep, useExisting                   bool
}

func main() {
	var o options
	flag.StringVar(&o.lab, "lab", "weir-e2e", "name of the lab")
	flag.StringVar(&o.focus, "focus", `\[sig-network\].*\[Conformance\]`, "ginkgo focus")
	flag.StringVar(&o.skip, "skip", "", "ginkgo skip")
	flag.StringVar(&o.proxy, "proxy", "weir", "what carries the lab")
	flag.StringVar(&o.known, "known", "test/e2e/known-failures.txt", "specs that do not pass yet, with reasons")
	flag.StringVar(&o.out, "out", "out/e2e.json", "where the result goes")
	flag.IntVar(&o.procs, "procs", 4, "parallel ginkgo processes")
	flag.BoolVar(&o.keep, "keep", false, "leave the lab up")
	flag.BoolVar(&o.useExisting, "use-existing", false, "use the lab of that name that is up")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	known, err := readKnown(o.known)
	if err != nil {
		return err
	}
	if !o.useExisting {
		if !o.keep {
			defer labCommand(context.Background(), "down", "--name", o.lab).Run()
		}
		if err := labCommand(ctx, "up", "--name", o.lab, "--proxy", o.proxy).Run(); err != nil {
			return fmt.Errorf("bringing the lab %s up: %w", o.lab, err)
		}
	}
	dir, err := os.MkdirTemp("", "weir-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	started := time.Now()
	fmt.Printf("e2e: focus %s, %d processes; the log is %s\n", o.focus, o.procs, logPath(o))
	runErr := runSpecs(ctx, o, dir)
	res, err := readReports(dir)
	if err != nil {
		return fmt.Errorf("reading the reports (the run ended with: %v; see %s): %w", runErr, logPath(o), err)
	}
	res.Suite, res.Seconds = o.focus, time.Since(started).Seconds()
	unexpected, recovered := judge(res, known)
	if err := writeJSON(o.out, res); err != nil {
		return err
	}
	for _, f := range res.Failures {
		fmt.Println("FAIL", f)
	}
	fmt.Printf("e2e: %d passed, %d failed (%d known), %d skipped in %.0f s\n", res.Passed, res.Failed, len(res.Known), res.Skipped, res.Seconds)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted")
	case res.Passed == 0:
		return fmt.Errorf("no spec passed: see %s", logPath(o))
	case len(unexpected) > 0:
		return fmt.Errorf("%d specs failed that %s does not list", len(unexpected), o.known)
	case len(recovered) > 0:
		return fmt.Errorf("%s lists specs that pass now, remove them: %s", o.known, strings.Join(recovered, "; "))
	}
	return nil
}

func logPath(o options) string { return strings.TrimSuffix(o.out, ".json") + ".log" }

// labCommand is a call of the lab that prints to our output.
func labCommand(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "bin/weir-lab", args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	return c
}

// runSpecs runs ginkgo inside the control-plane node, where the API server and all nodes are reachable.
func runSpecs(ctx context.Context, o options, dir string) error {
	bin, err := labBin(ctx)
	if err != nil {
		return err
	}
	logFile, err := os.Create(logPath(o))
	if err != nil {
		return err
	}
	defer logFile.Close()
	// The specs leave temporary files: they go with our folder.
	args := []string{"exec", "--name", o.lab, "cp", "--", "env", "TMPDIR=" + dir,
		filepath.Join(bin, "ginkgo"), fmt.Sprintf("--procs=%d", o.procs), "--focus=" + o.focus, "--no-color", "--timeout=1h"}
	if o.skip != "" {
		args = append(args, "--skip="+o.skip)
	}
	args = append(args, filepath.Join(bin, "e2e.test"), "--",
		"--provider=skeleton", "--num-nodes=2", "--node-os-distro=debian", "--dns-domain=cluster.local",
		"--report-dir="+dir, "--kubectl-path="+filepath.Join(bin, "kubectl"),
		"--allowed-not-ready-nodes=1", "--disable-log-dump=true", "--delete-namespace-on-failure=true")
	c := labCommand(ctx, args...)
	c.Stdout, c.Stderr = logFile, logFile
	done := make(chan struct{})
	go progress(logPath(o), done)
	err = c.Run()
	close(done)
	return err
}

// labBin asks the lab where its binaries are.
func labBin(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "bin/weir-lab", "build", "--e2e").Output()
	if err != nil {
		return "", fmt.Errorf("asking the lab for its binaries: %w", err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if dir := strings.TrimSpace(line); strings.HasPrefix(filepath.Base(dir), "kubernetes-") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("weir-lab build names no folder of Kubernetes' binaries:\n%s", out)
}

// progress counts finished specs in the log while ginkgo runs.
func progress(path string, done <-chan struct{}) {
	t := time.NewTicker(15 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			s := string(b)
			fmt.Printf("e2e: %d specs passed, %d failed so far\n", strings.Count(s, "•")-strings.Count(s, "• [FAILED]"), strings.Count(s, "• [FAILED]"))
		}
	}
}

type junitSuites struct {
	Suites []struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Status  string    `xml:"status,attr"`
			Skipped *struct{} `xml:"skipped"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// readReports adds up the JUnit files of a run.
func readReports(dir string) (*Result, error) {
	files, _ := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if len(files) == 0 {
		return nil, fmt.Errorf("no JUnit report in %s", dir)
	}
	res := &Result{Failures: []string{}, Known: []string{}}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var s junitSuites
		if err := xml.Unmarshal(b, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for _, suite := range s.Suites {
			for _, c := range suite.Cases {
				switch {
				case !strings.HasPrefix(c.Name, "[It]"):
					if c.Failure != nil || c.Error != nil {
						res.Failed++
						res.Failures = append(res.Failures, c.Name)
					}
				case c.Failure != nil || c.Error != nil:
					res.Failed++
					res.Failures = append(res.Failures, strings.TrimPrefix(c.Name, "[It] "))
				case c.Skipped != nil:
					res.Skipped++
				default:
					res.Passed++
				}
			}
		}
	}
	sort.Strings(res.Failures)
	return res, nil
}

// judge splits failures into known and unexpected, and finds known ones that did not fail.
func judge(res *Result, known []string) (unexpected, recovered []string) {
	failed := map[string]bool{}
	for _, f := range res.Failures {
		failed[f] = true
	}
	for _, k := range known {
		if failed[k] {
			res.Known = append(res.Known, k)
			delete(failed, k)
		} else {
			recovered = append(recovered, k)
		}
	}
	for f := range failed {
		unexpected = append(unexpected, f)
	}
	sort.Strings(unexpected)
	return unexpected, recovered
}

// readKnown reads a list of spec names: one a line, "# …" are comments (the reason stands above the name).
func readKnown(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := strings.TrimSpace(sc.Text())
		if line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out, nil
}

func writeJSON(path string, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
