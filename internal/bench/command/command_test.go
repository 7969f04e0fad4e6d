// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
	"github.com/weir-net/weir/internal/exitcode"
)

// runBench runs the command with a kubeconfig that is not there, and returns what it writes.
func runBench(args ...string) (string, error) {
	var out strings.Builder
	c := New(func() (*rest.Config, error) { return nil, errNoKubeconfig })
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

var errNoKubeconfig = errors.New("no kubeconfig")

// benchFile writes a run of one row with a latency in µs.
func benchFile(t *testing.T, name string, mean float64) string {
	t.Helper()
	f := &result.File{Schema: result.Schema, Metadata: result.Metadata{Name: name, Generator: result.Generator}}
	r := result.Row{ID: "pod2pod/tcp-rr", Spec: probe.Spec{Test: probe.RoundTrip}}
	for i := range 6 {
		v := mean * (1 + float64(i)/1000)
		r.Rounds = append(r.Rounds, result.Round{Round: i + 1, Result: probe.Result{Elapsed: 1, Operations: 1,
			Latency: &probe.Latency{Count: 1, Mean: v, P50: v, P90: v, P99: v, P999: v, Bins: []probe.Bin{{UpTo: v, Count: 1}, {UpTo: 2 * v, Count: 1}}}}})
	}
	f.Rows = append(f.Rows, r)
	f.Finish()
	path := filepath.Join(t.TempDir(), name+".json")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCompare(t *testing.T) {
	fast, slow := benchFile(t, "fast", 100), benchFile(t, "slow", 110)
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{fast, slow}, 0},
		{[]string{fast, slow, "--fail-below", "0.95"}, exitWorse},
		{[]string{fast, slow, "--fail-below", "0.85"}, 0},
		{[]string{slow, fast, "--fail-below", "0.95"}, 0},
		{[]string{fast, fast, "--fail-below", "1", "--strict"}, 0},
		{[]string{fast, slow, "--fail-below", "0.95", "--json", "--all"}, exitWorse},
		{[]string{fast, slow, "--fail-below", "0.95", "--metrics", "p50,p99"}, exitWorse},
		{[]string{fast, slow, "--fail-below", "0.95", "--metrics", "rate"}, 0},
		{[]string{fast, slow, "--fail-below", "0.95", "--metrics", "loss"}, 1},
	} {
		out, err := runBench(append([]string{"compare"}, c.args...)...)
		code := 0
		if coded := (*exitcode.Error)(nil); errors.As(err, &coded) {
			code = coded.Code
		} else if err != nil {
			code = 1
		}
		if code != c.code {
			t.Errorf("%v: code %d, want %d: %v\n%s", c.args, code, c.code, err, out)
		}
	}
	out, err := runBench("compare", fast, slow)
	if err != nil || !strings.Contains(out, "1.100") || !strings.Contains(out, "worse") {
		t.Errorf("%v\n%s", err, out)
	}
	evil := benchFile(t, "evil", 100)
	if b, err := os.ReadFile(evil); err != nil || os.WriteFile(evil, []byte(strings.Replace(string(b), `"name": "evil"`, `"name": "\u001b[2Jevil"`, 1)), 0o644) != nil {
		t.Fatal(err)
	}
	if out, err := runBench("compare", evil, slow); err != nil || strings.Contains(out, "\x1b") || !strings.Contains(out, "evil") {
		t.Errorf("a file's text reaches the terminal as it is: %v %q", err, out)
	}
	other := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(other, []byte(`{"rows":[]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{fast}, {fast, other}, {fast, "/nonexistent"}, {fast, slow, "--fail-below", "95"}} {
		if _, err := runBench(append([]string{"compare"}, args...)...); err == nil || errors.As(err, new(*exitcode.Error)) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestReport(t *testing.T) {
	fast, slow, dir := benchFile(t, "fast", 100), benchFile(t, "slow", 110), t.TempDir()
	page, table, data := filepath.Join(dir, "a.html"), filepath.Join(dir, "a.csv"), filepath.Join(dir, "a.json")
	if _, err := runBench("report", fast, slow, "--html", page, "--csv", table, "--json", data, "--plots", filepath.Join(dir, "plots")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{page: "<svg", table: "slow,,pod2pod/tcp-rr", data: `"fast"`, filepath.Join(dir, "plots", "latency.svg"): "<svg",
		filepath.Join(dir, "plots", "latency.png"): "PNG"} {
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d bytes without %q, %v", path, len(b), want, err)
		}
	}
	var files []result.File
	if b, err := os.ReadFile(data); err != nil || json.Unmarshal(b, &files) != nil || len(files) != 2 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

// Results that cannot be written are printed.
func TestEnds(t *testing.T) {
	f, err := result.Read(benchFile(t, "fast", 100))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	name := filepath.Join(t.TempDir(), "gone", "x.json")
	if err := end(&out, f, name); err == nil || !strings.Contains(out.String(), "pod2pod/tcp-rr") || strings.Contains(out.String(), "written") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	name = filepath.Join(t.TempDir(), "x.json")
	if err := end(&out, f, name); err != nil || !strings.Contains(out.String(), "written to "+name) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// A run gets to remove what it made when its terminal or its output goes away.
func TestSurvivesSignals(t *testing.T) {
	ctx, stop := untilSignal(t.Context())
	defer stop()
	defer func() { // for the tests after this one
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGPIPE)
		signal.Stop(c)
	}()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := w.WriteString("x"); !errors.Is(err, syscall.EPIPE) || !signal.Ignored(syscall.SIGPIPE) {
		t.Errorf("writing to a pipe that nobody reads: %v; ignored: %v", err, signal.Ignored(syscall.SIGPIPE))
	}
	w.Close()
	if signal.Ignored(syscall.SIGHUP) {
		return // the test runs under nohup, which holds for runs too
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}

// What cannot be is said before a cluster is asked for.
func TestRunRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--rows and --tests": {"--rows", "idle", "--tests", "tcp"},
		"no kubeconfig":      {"--rows", "idle"},
		"not a regular file": {"--output", os.DevNull},
		"cannot be written":  {"--output", "/nonexistent/x"},
		"no name of a file":  {"--output", ""},
	} {
		_, err := runBench(append([]string{"run", "--output", filepath.Join(t.TempDir(), "x")}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if out, err := runBench("rows"); err != nil || !strings.Contains(out, "pod2svc/tcp-rr") {
		t.Errorf("%v\n%s", err, out)
	}
}
