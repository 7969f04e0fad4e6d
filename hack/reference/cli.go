// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is one whose commands are documented.
type program struct {
	name, dir, pkg, what string
}

var programs = []program{
	{"weir", ".", "./cmd/weir", "For administrators: installs Weir, shows its state, explains connections, edits objects, measures a network. `weir lab` hands over to `weir-lab`."},
	{"weir-lab", "lab", "./cmd/weir-lab", "The lab: a multi-node Kubernetes in network namespaces of one machine. `weir lab` is the same."},
	{"weir-agent", ".", "./cmd/weir-agent", "The node daemon (DaemonSet `weir-node`), and what an administrator runs on a node."},
	{"weir-controller", ".", "./cmd/weir-controller", "The cluster's controller (Deployment `weir-controller`)."},
	{"weir-fanout", ".", "./cmd/weir-fanout", "What agents have the cluster from where there are many nodes (Deployment `weir-fanout`)."},
	{"weir-flows", ".", "./cmd/weir-flows", "The store of flow records (Deployment `weir-flows`)."},
	{"weir-wireguard", ".", "./cmd/weir-wireguard", "WireGuard in user space, for nodes whose kernel has none (DaemonSet `weir-wireguard`)."},
	{"weir-bgp", ".", "./cmd/weir-bgp", "The BGP sessions of a node (DaemonSet `weir-bgp`)."},
}

// handOver are commands that hand their flags on to another program, --help too.
var handOver = map[string]string{
	"weir lab":         "Hands over to `weir-lab`, see [below](#weir-lab).",
	"weir-lab kubectl": "Runs kubectl in the lab, with the arguments that follow.",
}

// commands builds each program, asks it for the help of all its commands, and returns the page.
func commands() (string, error) {
	bin, err := os.MkdirTemp("", "weir-reference-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(bin)
	var page strings.Builder
	page.WriteString("What `--help` of each command prints. Defaults that depend on the machine are put in words.\n")
	for _, p := range programs {
		build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(bin, p.name), p.pkg)
		build.Dir = p.dir
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", p.name, err, out)
		}
		fmt.Fprintf(&page, "\n## %s\n\n%s\n", p.name, p.what)
		if err := describe(&page, bin, p.name, nil); err != nil {
			return "", err
		}
	}
	return page.String(), nil
}

// describe writes the help of a command, and then that of each command below it.
func describe(page *strings.Builder, bin, name string, path []string) error {
	full := strings.Join(append([]string{name}, path...), " ")
	if len(path) > 0 {
		fmt.Fprintf(page, "\n### %s\n", full)
	}
	if what, ok := handOver[full]; ok {
		fmt.Fprintf(page, "\n%s\n", what)
		return nil
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, name), append(path, "--help")...)
	// What a default is taken from where it depends on the machine.
	cmd.Env = []string{"HOME=~", "NODE_NAME=the host's name", "PATH=" + os.Getenv("PATH")}
	raw, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s --help: %w\n%s", full, err, raw)
	}
	help := strings.TrimSpace(strings.ReplaceAll(string(raw), bin, "the program's folder"))
	help = strings.ReplaceAll(help, "the program's folder/", "")
	fmt.Fprintf(page, "\n```text\n%s\n```\n", help)
	for _, sub := range subcommands(help) {
		if sub == "help" || sub == "completion" {
			continue
		}
		if err := describe(page, bin, name, append(path[:len(path):len(path)], sub)); err != nil {
			return err
		}
	}
	return nil
}

// subcommands returns the names that a help text of cobra lists below "Available Commands:".
func subcommands(help string) (names []string) {
	_, list, _ := strings.Cut(help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); len(words) > 0 {
			names = append(names, words[0])
		}
	}
	return names
}
