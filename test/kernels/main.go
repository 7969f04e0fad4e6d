// SPDX-License-Identifier: Apache-2.0

// Command kernels boots Debian's kernels in an emulator and runs Weir's tests on them: whether the
// programs load, the scenarios, the drivers. `make kernels` calls it. Nothing of the machine is
// changed but the cache; the emulated machines have no network.
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
	"strings"
	"syscall"
	"time"
)

// check is one command that a kernel has to pass.
type check struct {
	name    string
	dir     string // beneath the emulated machine's /t
	command string
	// old is of kernels that lack what eBPF needs; others run the rest, too.
	old bool
	// refuses is what the output has to hold of the command, which has to fail, on old kernels.
	refuses string
}

// An emulated processor takes ten times as long, so what runs there are the tests that say most
// about a kernel.
var checks = []check{
	// As with secure boot: what it refuses to root everything after it does without.
	{name: "lockdown", command: "grep -F '[integrity]' /sys/kernel/security/lockdown", old: true},
	{name: "probe", command: "/t/weir-agent probe", old: true, refuses: "cannot carry Weir"},
	{name: "programs", dir: "ebpf", command: "./test -test.run 'TestVerifierBudget|TestTry|TestConformanceWithoutTCX/filters'"},
	{name: "what the verifier refuses", dir: "object", command: "./test -test.run 'TestRefused'"},
	{name: "scenarios on eBPF", dir: "scenarios", command: "./test -test.run 'TestPrograms$'"},
	{name: "nftables", dir: "nft", command: "./test -test.run 'Test[^U]'", old: true},
	{name: "scenarios on nftables", dir: "scenarios", command: "./test -test.run 'TestNFT$/^(affinity|clusterip|dsr-fallback|host-endpoint|maglev|nodeport-.*|policy-rule|source-ranges)$'", old: true},
	{name: "namespaces", dir: "netns", command: "./test -test.run 'TestServices$/IPv4/Enabled'"},
	// Many a machine's own kernel has no VLAN interfaces.
	{name: "VLANs", dir: "netns", command: passes("TestVLANInterfaces/(IPv4|nft-IPv4)$", "    ", 2)},
	// Nor has it a device of IP in IP.
	{name: "IP in IP", dir: "netns", command: passes("TestIPIPKernel", "    ", 1)},
	{name: "IP in IP, nftables", dir: "netns", command: "{ " + passes("TestIPIP$/(nft|mixed)", "    ", 4) + " && " + passes("TestIPIPLive/(nft|mixed)", "    ", 2) + " && " +
		passes("TestIPIPSources/nft", "    ", 1) + " && " + passes("TestIPIPWhy", "    ", 2) + "; }"},
	{name: "IP in IP, from Calico", dir: "netns", command: passes("TestIPIPFromCalico", "    ", 2)},
	// Nor WireGuard: the tests use that of the kernel where it is.
	{name: "WireGuard between nodes", dir: "wireguard", command: "{ test -d /sys/module/wireguard && " + passes("TestEncryptsBetweenNodes|TestRotate|TestLeavesOthersAlone", "", 3) + "; }"},
	{name: "WireGuard between pods", dir: "netns", command: "{ test -d /sys/module/wireguard && " + passes("TestWireGuard(Hosts)?$/(IPv4|nft-IPv4)$", "    ", 4) + "; }"},
	// Nor has it a queue of nftables' own.
	{name: "domain names, nftables", dir: "netns", old: true, command: "{ test -d /sys/module/nft_queue && " + passes("TestHostileForgedQueued$/nft-IPv4", "    ", 1) + "; }"},
	{name: "namespaces, nftables", dir: "netns", command: "./test -test.run 'TestServices$/nft-IPv4/Enabled'", old: true},
}

// passes is the command that runs tests, of which so many have to pass; indent is how far in their
// lines begin: four spaces of subtests.
func passes(pattern, indent string, count int) string {
	return fmt.Sprintf("sh -c './test -test.v -test.run \"%s\" | tee /tmp/passes; test $(grep -c \"^%s--- PASS: Test\" /tmp/passes) = %d'", pattern, indent, count)
}

// packages are those whose tests run, by the folder that they get.
var packages = map[string]string{"ebpf": "./internal/dataplane/ebpf", "object": "./internal/dataplane/ebpf/object", "nft": "./internal/dataplane/nft", "scenarios": "./test/scenarios", "netns": "./test/netns", "wireguard": "./internal/wireguard"}

// firstWithEBPF is the oldest kernel that has to carry the eBPF data plane (SO_NETNS_COOKIE).
const firstWithEBPF = "5.14"

// outcome is what a check came to on a kernel.
type outcome struct {
	Kernel  string
	Check   string
	Passed  bool
	Seconds int
	Output  string `json:",omitempty"` // of what failed: its end
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	versions := flag.String("kernels", "5.10,6.1,6.12,7", "kernels by the begin of their version, separated by commas")
	only := flag.String("only", "", "run the checks whose name has this alone")
	limit := flag.Duration("limit", 40*time.Minute, "how long a kernel may take")
	out := flag.String("out", "out/kernels.json", "where results are written")
	flag.Parse()
	cache := filepath.Join(os.Getenv("WEIR_CACHE"), "kernels")
	if os.Getenv("WEIR_CACHE") == "" {
		return errors.New("WEIR_CACHE is not set; run this by make kernels")
	}
	var run []check
	for _, c := range checks {
		if strings.Contains(c.name, *only) {
			run = append(run, c)
		}
	}
	if len(run) == 0 {
		return fmt.Errorf("-only %q: no check has that in its name", *only)
	}
	work, err := os.MkdirTemp("", "weir-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	fmt.Println("building the tests")
	files, err := build(ctx, work, run)
	if err != nil {
		return err
	}
	repo, err := openArchive(ctx, cache)
	if err != nil {
		return err
	}
	var all []outcome
	failed := 0
	for _, version := range strings.Split(*versions, ",") {
		k, err := repo.kernel(ctx, version)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", version, err)
		}
		begun := time.Now()
		fmt.Printf("%s: booting\n", k.release)
		got, err := k.play(ctx, work, files, run, *limit, func(o outcome) {
			if o.Passed {
				fmt.Printf("  %-24s passed (%d s)\n", o.Check, o.Seconds)
				return
			}
			failed++
			fmt.Printf("  %-24s FAILED (%d s)\n    %s\n", o.Check, o.Seconds, strings.ReplaceAll(strings.TrimSpace(o.Output), "\n", "\n    "))
		})
		if err != nil {
			return fmt.Errorf("kernel %s: %w", k.release, err)
		}
		fmt.Printf("%s: done in %s\n", k.release, time.Since(begun).Round(time.Second))
		all = append(all, got...)
	}
	data, err := json.MarshalIndent(all, "", " ")
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(*out), 0o755), os.WriteFile(*out, append(data, '\n'), 0o644))
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d checks failed; see above, and %s", failed, len(all), *out)
	}
	if err == nil {
		fmt.Printf("kernels: all %d checks passed\n", len(all))
	}
	return err
}

// build makes a folder with the agent and the tests that the checks run, as the emulated machines
// have it at /t.
func build(ctx context.Context, work string, checks []check) (string, error) {
	files := filepath.Join(work, "t")
	if err := command(ctx, "", "go", "build", "-trimpath", "-o", filepath.Join(files, "weir-agent"), "./cmd/weir-agent"); err != nil {
		return "", err
	}
	for name, p := range packages {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.dir == name }) {
			continue
		}
		dir := filepath.Join(files, name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), command(ctx, "", "go", "test", "-c", "-trimpath", "-o", filepath.Join(dir, "test"), p)); err != nil {
			return "", err
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return "", err
		}
		for _, e := range entries { // what tests read
			if strings.HasSuffix(e.Name(), ".go") || e.Name() == "programs" || e.Name() == "scenario" {
				continue
			}
			if err := command(ctx, "", "cp", "-r", filepath.Join(p, e.Name()), dir); err != nil {
				return "", err
			}
		}
	}
	return files, nil
}

// command runs a command and says what it printed when it failed.
func command(ctx context.Context, dir, name string, args ...string) error {
	_, err := output(ctx, dir, name, args...)
	return err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var errOut strings.Builder
	cmd.Stderr = &errOut
	got, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, lastLines(errOut.String()+string(got), 8))
	}
	return string(got), nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// older reports whether version a is older than b, by their first two numbers.
func older(a, b string) bool {
	number := func(s string) []int {
		var major, minor int
		_, _ = fmt.Sscanf(s, "%d.%d", &major, &minor) // 0 where there is none
		return []int{major, minor}
	}
	return slices.Compare(number(a), number(b)) < 0
}
