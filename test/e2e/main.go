// SPDX-License-Identifier: Apache-2.0

// Command e2e runs Kubernetes' own end-to-end tests on Weir: it brings labs up, runs the specs
// of sig-network of the upstream e2e.test in them, and compares the outcome with two lists.
// skips.golden names every spec that is not run, with the reason; known-failures.txt those that do
// not pass yet. Every other spec has to pass. It writes out/e2e….json and exits 1 when a spec
// failed that is not known to, when a known failure passed, when a spec skipped itself, and when
// the lists and e2e.test do not agree.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

const suite = "[sig-network]"

type options struct {
	lab, focus, groups, proxy, skips, known, out            string
	settings                                                settings
	procs, repeat                                           int
	conformance, keep, useExisting, list, resume, secondTry bool
	limit                                                   time.Duration
}

func main() {
	var o options
	flag.BoolVar(&o.conformance, "conformance", false, "the conformance specs and some that are quick, in a plain lab")
	flag.StringVar(&o.focus, "focus", os.Getenv("WEIR_E2E_FOCUS"), "only specs whose names match this expression (default $WEIR_E2E_FOCUS)")
	flag.StringVar(&o.groups, "group", "", "only these groups of specs, by name, with commas between")
	flag.StringVar(&o.settings.ConnectTime, "connect-time", "", "bpfConnectTimeLoadBalancing: Disabled, TCP or Enabled")
	flag.StringVar(&o.settings.Mode, "mode", "", "bpfExternalServiceMode: Tunnel or DSR")
	flag.StringVar(&o.settings.DataPlane, "data-plane", "", "nftables, or mixed: one node of three with nftables (default: eBPF)")
	flag.StringVar(&o.settings.Install, "install", "", "further arguments of weir install, with spaces between: --fanout=always has agents fed by a fan-out")
	flag.BoolVar(&o.settings.BGP, "bgp", false, "labs whose second workers are behind a router that knows pods by BGP alone, without an encapsulation")
	flag.BoolVar(&o.settings.WireGuard, "wireguard", false, "labs whose nodes encrypt what they send to each other's pods: by the kernel, or where that cannot by wireguard-go")
	flag.StringVar(&o.settings.On, "on", "", "labs whose pods have addresses of another CNI plugin, as weir-lab up has it: generic, aws-vpc-cni, azure-cni, azure-cni-overlay; specs that these labs have nothing for are not run")
	flag.StringVar(&o.settings.Family, "ip-family", "", "ipv6: labs of IPv6 alone (default: IPv4, and both for what is about both)")
	flag.IntVar(&o.repeat, "repeat", 1, "how many times to run everything, each time in new labs")
	flag.IntVar(&o.procs, "procs", 8, "parallel processes of a group that does not say; most specs wait most of the time")
	flag.StringVar(&o.lab, "lab", "weir-e2e", "name of the lab")
	flag.StringVar(&o.proxy, "proxy", "weir", "who carries the lab's Services, as weir-lab up has it")
	flag.StringVar(&o.skips, "skips", "test/e2e/skips.golden", "specs that are not run, with reasons")
	flag.StringVar(&o.known, "known", "test/e2e/known-failures.txt", "specs that do not pass yet, with reasons")
	flag.StringVar(&o.out, "out", "", "where the result goes (default out/e2e….json by what is run)")
	flag.BoolVar(&o.resume, "resume", false, "go on where the run ended that wrote --out")
	flag.DurationVar(&o.limit, "for", 0, "stop after this time; --resume goes on (default: no limit)")
	flag.BoolVar(&o.keep, "keep", false, "leave the lab up")
	flag.BoolVar(&o.useExisting, "use-existing", false, "use the lab of that name, as an earlier run with --keep left it")
	flag.BoolVar(&o.secondTry, "second-try", false, fmt.Sprintf("excuse up to %d specs of a run that failed and then passed alone", maxExcused))
	flag.BoolVar(&o.list, "list", false, "print which spec is in which group, or why it is skipped, and end")
	proxyMode := flag.Bool("api-proxy", false, "be the path to the API server inside a lab's machine; not for users")
	flag.Parse()
	if o.out == "" {
		o.out = o.defaultOut()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	do := run
	if *proxyMode {
		do = func(ctx context.Context, _ options) error {
			return serveAPI(ctx, apiProxy, families[o.settings.Family].apiServer, patience, func(string) {})
		}
	}
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

// check finds what would be refused only in the lab.
func (o options) check() error {
	if v := o.settings.ConnectTime; v != "" && !slices.Contains([]string{"Disabled", "TCP", "Enabled"}, v) {
		return fmt.Errorf("--connect-time=%s: want Disabled, TCP or Enabled", v)
	}
	if v := o.settings.Mode; v != "" && !slices.Contains([]string{"Tunnel", "DSR"}, v) {
		return fmt.Errorf("--mode=%s: want Tunnel or DSR", v)
	}
	if v := o.settings.DataPlane; v != "" && v != planeNFTables && v != planeMixed {
		return fmt.Errorf("--data-plane=%s: want %s or %s", v, planeNFTables, planeMixed)
	}
	for _, arg := range strings.Fields(o.settings.Install) {
		if !strings.HasPrefix(arg, "--") {
			return fmt.Errorf("--install=%q: %q is no argument of the form --NAME=VALUE", o.settings.Install, arg)
		}
	}
	if o.settings.Install != "" && !strings.HasPrefix(o.proxy, "weir") {
		return fmt.Errorf("--install: the labs of --proxy=%s do not have Weir", o.proxy)
	}
	if o.settings.BGP && o.proxy != "weir" {
		return fmt.Errorf("--bgp is for labs of --proxy=weir")
	}
	if o.settings.WireGuard && o.proxy != "weir" {
		return fmt.Errorf("--wireguard is for labs of --proxy=weir")
	}
	if o.settings.On != "" && o.proxy != "weir" {
		return fmt.Errorf("--on is for labs of --proxy=weir")
	}
	if v := o.settings.On; v != "" && lacks[v] == nil {
		return fmt.Errorf("--on=%s: want %s", v, strings.Join(slices.Sorted(maps.Keys(lacks)), " or "))
	}
	if o.settings.On != "" && (o.settings.BGP || o.settings.WireGuard || o.settings.DataPlane != "") {
		return fmt.Errorf("--on has no meaning with --bgp, --wireguard and --data-plane")
	}
	if f := o.settings.Family; f != "" && f != "ipv6" {
		return fmt.Errorf("--ip-family=%s: want ipv6, or nothing", f)
	}
	if o.settings.Family != "" && o.settings.On != "" {
		return fmt.Errorf("--ip-family has no meaning with --on: these labs have IPv4 alone")
	}
	if o.repeat < 1 || o.procs < 1 {
		return fmt.Errorf("--repeat and --procs have to be at least 1")
	}
	return nil
}

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

// defaultOut names the result by what was run, so that the modes do not overwrite each other's.
func (o options) defaultOut() string {
	name := "e2e"
	if o.conformance {
		name += "-conformance"
	}
	if o.settings.ConnectTime != "" {
		name += "-connect-time-" + strings.ToLower(o.settings.ConnectTime)
	}
	if o.settings.Mode != "" {
		name += "-" + strings.ToLower(o.settings.Mode)
	}
	if o.settings.DataPlane != "" {
		name += "-" + o.settings.DataPlane
	}
	if o.settings.Install != "" {
		name += "-" + strings.Trim(notInNames.ReplaceAllString(strings.ToLower(o.settings.Install), "-"), "-")
	}
	if o.settings.BGP {
		name += "-bgp"
	}
	if o.settings.WireGuard {
		name += "-wireguard"
	}
	if o.settings.Family != "" {
		name += "-" + o.settings.Family
	}
	if o.settings.On != "" {
		name += "-on-" + notInNames.ReplaceAllString(strings.ToLower(o.settings.On), "-")
	}
	if o.proxy != "weir" {
		name += "-" + o.proxy
	}
	return filepath.Join("out", name+".json")
}

func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return fmt.Errorf("--focus: %w", err)
	}
	known, err := readKnown(o.known)
	if err != nil {
		return err
	}
	bin, err := programs(ctx)
	if err != nil {
		return err
	}
	tasks, skips, err := plan(o, filepath.Join(bin, "e2e.test"))
	if err != nil {
		return err
	}
	if o.list {
		printPlan(tasks, skips)
		return nil
	}
	var names []string
	if o.groups != "" {
		names = strings.Split(o.groups, ",")
	}
	if tasks, err = narrow(tasks, focus, names); err != nil {
		return err
	}
	if n := len(labs(tasks)); o.useExisting && n > 1 {
		return fmt.Errorf("--use-existing: there is one lab and the specs need %d, choose with --group", n)
	}
	build, err := buildID("bin")
	if err != nil {
		return err
	}
	res := &result{Suite: suite, Settings: o.settings, Focus: o.focus, Groups: o.groups, Build: build, SecondTry: o.secondTry, Skipped: skips}
	if o.resume {
		if err := res.resume(o.out); err != nil {
			return err
		}
	}
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	rec := &recorder{res: res, path: o.out}
	return finish(o, rec, tasks, known, all(ctx, o, bin, tasks, rec))
}

// finish classifies and prints what there is, and turns the verdict into an error.
func finish(o options, rec *recorder, tasks []task, known map[string]string, err error) error {
	res := rec.res
	if err == nil {
		res.classify(known, tasks)
	}
	rec.write()
	res.print(os.Stdout, o.out)
	switch {
	case errors.Is(err, context.Canceled):
		return errors.Join(fmt.Errorf("interrupted; --resume goes on"), rec.err)
	case errors.Is(err, context.DeadlineExceeded):
		return errors.Join(fmt.Errorf("not everything was run in %v; --resume goes on", o.limit), rec.err)
	case err != nil:
		return errors.Join(err, rec.err)
	}
	return errors.Join(res.verdict(o.known), rec.err)
}

// plan says which spec runs in which group.
func plan(o options, e2eTest string) ([]task, []skip, error) {
	specs, err := listSpecs(e2eTest, suite)
	if err != nil {
		return nil, nil, err
	}
	skips, err := readSkips(o.skips)
	if err != nil {
		return nil, nil, err
	}
	selected, err := selectSpecs(specs, skips)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.skips, err)
	}
	of := lacks[o.settings.On]
	if o.settings.Family != "" {
		of = onIPv6
	}
	more := lacking(of, selected)
	skips = append(skips, more...)
	selected = slices.DeleteFunc(selected, func(name string) bool {
		return slices.ContainsFunc(more, func(s skip) bool { return s.Name == name })
	})
	if o.conformance {
		tasks, _ := divide(conformance, selected)
		return tasks, skips, nil
	}
	tasks, rest := divide(whole, selected)
	if len(rest) > 0 {
		return nil, nil, fmt.Errorf("%d specs are in no group, the first is %s", len(rest), rest[0])
	}
	slices.Reverse(tasks) // what is most and quickest first
	return tasks, skips, nil
}

func printPlan(tasks []task, skips []skip) {
	for _, t := range tasks {
		for _, s := range t.Specs {
			fmt.Printf("%-12s %s\n", t.Name, s)
		}
	}
	for _, s := range skips {
		fmt.Printf("%-12s %s\n", "-"+s.Reason, s.Name)
	}
}
