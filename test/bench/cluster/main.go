// SPDX-License-Identifier: Apache-2.0

// Command cluster measures Weir in a large cluster on one machine: a real API server and etcd with
// the objects of all nodes, two real fan-outs, one real agent with its programs in the kernel, and
// for each other node a stand-in that holds the stream of its agent. Everything runs in namespaces
// of its own, and ends with the program. It writes out/bench-cluster.json, one object a size, and
// out/bench-cluster-rows.json with all that was measured.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// insideEnv is set in the process in namespaces: the folder of the run.
const insideEnv = "WEIR_BENCH_CLUSTER_INSIDE"

// options are what is measured.
type options struct {
	sizes    []int
	policies int
	grown    int // policies in the end; 0 = no more than there are
	services int
	seed     uint64
	span     time.Duration // of a row; half of it where nothing is compared with its figures
	away     time.Duration // for how long the API server is stopped; 0 = it is not
	brief    bool          // only the rows that curves by the number of nodes are of
	rates    []int         // pods that change each second
	quiet    time.Duration
	only     []string // names of rows; empty = all
	direct   bool
	profile  string // folder for profiles; empty = none
	out      string
	plot     string        // file of the picture; empty = none
	doc      string        // document whose tables are written anew; empty = none
	interval time.Duration // of the fan-outs
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == standInsCommand {
		if err := runStandIns(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "stand-ins:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	var sizes, rates, only string
	flag.StringVar(&sizes, "sizes", "100,300,1000", "numbers of nodes, with commas between, with 100 pods each; the largest has all rows, the others those of curves")
	flag.DurationVar(&o.away, "away", 5*time.Minute, "how long the API server is stopped, at the smallest size; 0 = it is not")
	flag.BoolVar(&o.brief, "brief", false, "the largest size has no more rows than the others")
	flag.IntVar(&o.policies, "policies", 2000, "NetworkPolicies, of ten rules each")
	flag.IntVar(&o.grown, "grown-policies", 30000, "NetworkPolicies after all other rows of an agent, at the largest size; 0 = no rows with more")
	flag.IntVar(&o.services, "services", 1000, "Services, of 60 endpoints each")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of what is drawn at random")
	flag.DurationVar(&o.span, "span", 10*time.Second, "how long a row is measured: twice, for CPU and for latency; half as long where the row is no main one")
	flag.StringVar(&rates, "rates", "20,100", "numbers of pods that change each second, the rows of which are measured")
	flag.DurationVar(&o.quiet, "quiet", 0, "how long to wait before each row for others to leave the machine alone")
	flag.BoolVar(&o.direct, "direct", true, "measure an agent that follows the API server by itself, too")
	flag.StringVar(&only, "rows", "", "measure only the rows of these names, with commas between, such as \"idle,20 pods\"")
	flag.StringVar(&o.profile, "profile", "", "folder for profiles of the agent and the fan-out; the agent is built with the tag profile then")
	flag.StringVar(&o.out, "out", "out/bench-cluster.json", "file of the results")
	flag.DurationVar(&o.interval, "interval", 0, "least time between two changes that a fan-out sends one agent; 0 = its default")
	shown := flag.String("show", "", "print the tables of this file of all that was measured as Markdown, draw it (-plot), write -doc and -out where they are set, and measure nothing")
	flag.StringVar(&o.doc, "doc", "", "Markdown file whose tables are written anew, between the marks of this program")
	flag.StringVar(&o.plot, "plot", "", "SVG file that the curves by the number of nodes are drawn into, where there are two sizes or more")
	flag.Parse()
	if *shown != "" {
		summary := ""
		flag.Visit(func(f *flag.Flag) {
			if f.Name == "out" {
				summary = o.out
			}
		})
		if err := show(*shown, summary, o.plot, o.doc, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench-cluster:", err)
			os.Exit(1)
		}
		return
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	err := parse(&o, sizes, rates)
	if err == nil {
		if dir := os.Getenv(insideEnv); dir != "" {
			err = inside(o, dir)
		} else {
			err = outside(o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		os.Exit(1)
	}
}

func parse(o *options, sizes, rates string) (err error) {
	if o.sizes, err = numbers(sizes); err != nil {
		return fmt.Errorf("-sizes: %w", err)
	}
	for _, n := range o.sizes {
		if n < 2 || n > maxNodes {
			return fmt.Errorf("%d nodes: want 2 to %d", n, maxNodes)
		}
	}
	if o.grown != 0 && o.grown <= o.policies {
		return fmt.Errorf("-grown-policies %d: there are %d to begin with; 0 measures no rows with more", o.grown, o.policies)
	}
	if len(o.sizes) < 2 {
		o.plot = "" // there is no curve by the number of nodes
	}
	if o.away != 0 && o.away < mostSaidAfter {
		return fmt.Errorf("-away %s: want %s at least, or 0", o.away, mostSaidAfter)
	}
	if o.rates, err = numbers(rates); err != nil {
		return fmt.Errorf("-rates: %w", err)
	}
	if o.out, err = filepath.Abs(o.out); err == nil && o.profile != "" {
		o.profile, err = filepath.Abs(o.profile)
	}
	return err
}

func numbers(text string) (out []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number above 0", word)
		}
		out = append(out, n)
	}
	return out, nil
}

// outside builds the programs and measures one size after the other, each in namespaces of its own.
func outside(o options) error {
	if os.Getenv("WEIR_APISERVER_BIN_DIR") == "" {
		return errors.New("WEIR_APISERVER_BIN_DIR is not set: it names a folder with kube-apiserver and etcd")
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed for namespaces and programs")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "weir-bench-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("building the programs")
	for _, name := range []string{"weir-agent", "weir-fanout"} {
		tags := "grpcnotrace" // as in the Makefile
		if o.profile != "" {
			tags += ",profile"
		}
		build := exec.CommandContext(ctx, "go", "build", "-tags", tags, "-o", filepath.Join(dir, name), "github.com/weir-net/weir/cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	var results []*Result
	for _, nodes := range o.sizes {
		r, err := measureInside(ctx, dir, nodes, o.sizeFlags(nodes)...)
		if r != nil {
			results = append(results, r)
			if err := write(o.out, results); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	say("wrote %s and %s", o.out, rowsFile(o.out))
	return present(results, "", o.plot, o.doc)
}

// sizeFlags are what one size is measured with in place of what is said for all.
func (o *options) sizeFlags(nodes int) []string {
	away := o.away
	if nodes != slices.Min(o.sizes) {
		away = 0
	}
	return []string{"-sizes", strconv.Itoa(nodes), "-away", away.String(), fmt.Sprintf("-brief=%v", o.brief || nodes != slices.Max(o.sizes))}
}

// measureInside runs this program once more for one size. There is a result where a part of it was
// measured, too.
func measureInside(ctx context.Context, dir string, nodes int, flags ...string) (*Result, error) {
	work := filepath.Join(dir, strconv.Itoa(nodes))
	if err := os.Mkdir(work, 0o755); err != nil {
		return nil, err
	}
	root, err := kernel.CgroupV2()
	if err != nil {
		return nil, err
	}
	cgroup := filepath.Join(root, filepath.Base(dir)+"-"+strconv.Itoa(nodes))
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		return nil, err
	}
	defer func() {
		for range 500 { // processes that ended a moment ago
			if os.Remove(cgroup) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		say("the control group %s is left", cgroup)
	}()
	args := append(slices.Clone(os.Args[1:]), flags...)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), insideEnv+"="+work, cgroupEnv+"="+cgroup)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// A group of its own: an interrupt of the terminal comes from here, once.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start in namespaces: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // with all that it started
	defer stop()
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	text, readErr := os.ReadFile(filepath.Join(work, resultFile))
	if readErr != nil {
		return nil, errors.Join(err, readErr)
	}
	r := &Result{}
	if jsonErr := json.Unmarshal(text, r); jsonErr != nil {
		return nil, errors.Join(err, jsonErr)
	}
	return r, err
}

// inside measures one size; this process is the first one of its namespaces.
func inside(o options, dir string) (err error) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring the loopback device up: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc of the process namespace: %w", err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(cgroupEnv), "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("join the control group: %w", err)
	}
	return newSite(o, dir).run()
}

// began is when this process did.
var began = time.Now()

// say reports how the work gets on.
func say(format string, args ...any) {
	fmt.Printf("bench-cluster: %6.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}
