// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// far is the machine outside of the cluster that the specs run on.
	far = "client3"
)

var (
	//go:embed restart.yaml
	restartYAML string
	//go:embed pool.yaml
	poolYAML string
)

// lab is a lab that specs run in.
type lab struct {
	name     string
	programs string // folder of Kubernetes' programs
	dir      string // folder for our files, gone when we end
	run      []*exec.Cmd
}

// command is a call of the lab's program that prints to our output.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "bin/weir-lab", args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	return c
}

// in is a command inside a machine of the lab.
func (l *lab) in(ctx context.Context, machine string, args ...string) *exec.Cmd {
	return command(ctx, append([]string{"exec", "--name", l.name, machine, "--"}, args...)...)
}

// must runs a command inside a machine and returns its output.
func (l *lab) must(ctx context.Context, machine string, args ...string) (string, error) {
	c := l.in(ctx, machine, args...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s in %s: %w: %s", strings.Join(args, " "), machine, err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// kubectl runs kubectl as the lab's administrator.
func (l *lab) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	c := command(ctx, append([]string{"kubectl", "--name", l.name}, args...)...)
	var out bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &out
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// programs asks the lab where Kubernetes' programs are, and builds them when they are missing.
func programs(ctx context.Context) (string, error) {
	c := exec.CommandContext(ctx, "bin/weir-lab", "build", "--e2e")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("asking the lab for its programs: %w", err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if dir := strings.TrimSpace(line); strings.HasPrefix(filepath.Base(dir), "kubernetes-") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("weir-lab build names no folder of Kubernetes' programs:\n%s", out)
}

// settings are what differs between two runs of the same specs.
type settings struct {
	ConnectTime string `json:"connect_time"`
	Mode        string `json:"mode"`
	DataPlane   string `json:"data_plane,omitempty"`
	// Install are arguments of weir install, with spaces between.
	Install string `json:"install,omitempty"`
	// BGP: every second worker is behind a router that knows pods by BGP alone.
	BGP bool `json:"bgp,omitempty"`
	// WireGuard: nodes encrypt what they send to each other's pods.
	WireGuard bool `json:"wireguard,omitempty"`
	// Family is "ipv6" for labs of IPv6 alone.
	Family string `json:"family,omitempty"`
	// On is the CNI plugin that gives pods their addresses in the place of Weir's.
	On string `json:"on,omitempty"`
}

// The data planes, as a NodeStatus names them.
const (
	planeNFTables = "nftables"
	planeMixed    = "mixed" // worker1 has nftables, the others eBPF
)

func (s settings) patch() string {
	var fields []string
	if s.ConnectTime != "" {
		fields = append(fields, fmt.Sprintf("%q:%q", "bpfConnectTimeLoadBalancing", s.ConnectTime))
	}
	if s.Mode != "" {
		fields = append(fields, fmt.Sprintf("%q:%q", "bpfExternalServiceMode", s.Mode))
	}
	if s.DataPlane == planeNFTables {
		fields = append(fields, `"bpfEnabled":false`)
	}
	if s.WireGuard {
		fields = append(fields, `"wireguardEnabled":true,"wireguardEnabledV6":true`)
	}
	if len(fields) == 0 {
		return ""
	}
	return `{"spec":{` + strings.Join(fields, ",") + `}}`
}

// mixedYAML gives one node the nftables data plane.
const mixedYAML = `{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "node.worker1"}, "spec": {"bpfEnabled": false}}`

// await waits until the nodes have the data planes that the settings ask for.
func (s settings) await(ctx context.Context, l *lab, workers int) error {
	want := map[string]string{}
	switch s.DataPlane {
	case planeNFTables:
		want["cp"] = planeNFTables
		for i := range workers {
			want[fmt.Sprintf("worker%d", i+1)] = planeNFTables
		}
	case planeMixed:
		want["worker1"] = planeNFTables
	}
	for node, plane := range want {
		for began := time.Now(); ; {
			has, err := l.kubectl(ctx, "", "get", "nodestatus", node, "-o", "jsonpath={.status.dataplane}")
			if err == nil && has == plane {
				break
			}
			if ctx.Err() != nil || time.Since(began) > 2*time.Minute {
				return fmt.Errorf("%s has the data plane %q, not %s: %w", node, has, plane, err)
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	if s.WireGuard {
		return l.awaitEncrypted(ctx, workers)
	}
	return nil
}

// awaitEncrypted waits until all nodes encrypt what they send to any other one.
func (l *lab) awaitEncrypted(ctx context.Context, workers int) error {
	want := strings.Repeat(fmt.Sprintf("%d []\n", workers), workers+1)
	for began := time.Now(); ; {
		has, err := l.kubectl(ctx, "", "get", "nodestatuses", "-o", `jsonpath={range .items[*]}{.status.wireGuard.peers} [{.status.wireGuard.clear}]{"\n"}{end}`)
		if err == nil && strings.TrimSpace(has) == strings.TrimSpace(want) {
			return nil
		}
		if ctx.Err() != nil || time.Since(began) > 2*time.Minute {
			return fmt.Errorf("not all nodes encrypt what they send to all others; of each, to how many it does, and to which it sends in clear:\n%s%w", has, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// upArgs are the arguments of weir-lab for the lab of a group.
func (l *lab) upArgs(g group, s settings, proxy string) []string {
	args := []string{"up", "--name", l.name, "--proxy", proxy, "--workers", fmt.Sprint(g.Workers)}
	if !g.Plain {
		args = append(args, "--feature-gates", "RelaxedServiceNameValidation=true")
	}
	switch {
	case s.Family != "":
		args = append(args, "--ip-family", s.Family)
	case g.Dual:
		args = append(args, "--ip-family", "dual")
	}
	if s.BGP {
		args = append(args, "--bgp")
	}
	if s.On != "" {
		args = append(args, "--on", s.On)
	}
	if s.WireGuard {
		args = append(args, "--install-arg=--wireguard-go")
	}
	for _, arg := range strings.Fields(s.Install) {
		args = append(args, "--install-arg="+arg)
	}
	return args
}

// up brings a lab up and makes it what the group needs.
func (l *lab) up(ctx context.Context, g group, s settings, proxy string) error {
	if err := command(ctx, l.upArgs(g, s, proxy)...).Run(); err != nil {
		return fmt.Errorf("bringing the lab %s up: %w", l.name, err)
	}
	if patch := s.patch(); patch != "" {
		if _, err := l.kubectl(ctx, "", "patch", "felixconfiguration", "default", "--type=merge", "-p", patch); err != nil {
			return err
		}
	}
	if s.DataPlane == planeMixed {
		if _, err := l.kubectl(ctx, mixedYAML, "apply", "-f", "-"); err != nil {
			return err
		}
	}
	if err := s.await(ctx, l, g.Workers); err != nil {
		return err
	}
	if g.Plain {
		return nil
	}
	return l.furnish(ctx, g, s, proxy)
}

// furnish gives the lab what the specs of the whole suite look for: zones, a client far away, an
// Internet, and components that can be restarted.
func (l *lab) furnish(ctx context.Context, g group, s settings, proxy string) error {
	for i := 0; i <= g.Workers; i++ {
		node := "cp"
		if i > 0 {
			node = fmt.Sprintf("worker%d", i)
		}
		zone := fmt.Sprintf("topology.kubernetes.io/zone=zone-%c", 'a'+max(i-1, 0)%g.Zones)
		if _, err := l.kubectl(ctx, "", "label", "node", node, zone); err != nil {
			return err
		}
	}
	f := families[s.Family]
	machines := [][]string{
		{far, "address", "add", f.farAddr + "/" + f.bit, "dev", "eth0"},
		{far, "route", "replace", "default", "via", f.farGW, "src", f.farAddr},
		{"router", "route", "add", f.farAddr + "/" + f.bit, "via", f.farLAN},
		{"router", "address", "add", f.dns + "/" + f.bit, "dev", "lo"},
		{"router", "address", "add", f.web + "/" + f.bit, "dev", "lo"},
	}
	servers := []string{f.dns}
	if six := families["ipv6"].dns; g.Dual {
		machines = append(machines, []string{"router", "address", "add", six + "/128", "dev", "lo"})
		servers = append(servers, six)
	}
	for _, c := range machines {
		if _, err := l.must(ctx, c[0], append([]string{"ip", f.ip()}, c[1:]...)...); err != nil {
			return err
		}
	}
	if err := l.internet(ctx, f, servers); err != nil {
		return err
	}
	me, err := os.Executable()
	if err != nil {
		return err
	}
	if err := l.start(far, me, "--api-proxy", "--ip-family="+s.Family); err != nil {
		return err
	}
	if !strings.HasPrefix(proxy, "weir") {
		return nil
	}
	if s.On != "aws-vpc-cni" { // see lacks
		pool := strings.NewReplacer("CIDR", f.loadBalancers, "BLOCK", f.poolBlock).Replace(poolYAML)
		if _, err := l.kubectl(ctx, pool, "apply", "-f", "-"); err != nil {
			return err
		}
	}
	return l.restarters(ctx)
}

// start begins a program in a machine that goes on until the lab goes.
func (l *lab) start(machine string, args ...string) error {
	c := l.in(context.Background(), machine, args...)
	c.Stdout, c.Stderr = nil, nil
	if err := c.Start(); err != nil {
		return fmt.Errorf("starting %s in %s: %w", filepath.Base(args[0]), machine, err)
	}
	l.run = append(l.run, c)
	return nil
}

// restarters starts what restarts components for specs. Each does so for the first time now, so
// everything is waited for.
func (l *lab) restarters(ctx context.Context) error {
	if _, err := l.kubectl(ctx, restartYAML, "apply", "-f", "-"); err != nil {
		return err
	}
	var last error
	calm := 0
	for until := time.Now().Add(3 * time.Minute); time.Now().Before(until) && ctx.Err() == nil && calm < 5; time.Sleep(time.Second) {
		calm++
		for _, ds := range []string{"e2e-restart-agent", "e2e-restart-apiserver", "weir-node"} {
			if _, err := l.kubectl(ctx, "", "-n", "kube-system", "rollout", "status", "ds/"+ds, "--timeout=10s"); err != nil {
				last, calm = err, 0
			}
		}
	}
	if calm < 5 {
		return fmt.Errorf("waiting for the components that were restarted: %w", errors.Join(ctx.Err(), last))
	}
	return nil
}

// zone is the Internet as the specs know it; ADDRS are the name server's addresses.
const zone = `google.com dns.google 8.8.8.8.in-addr.arpa {
    bind ADDRS
    hosts {
        DNS dns.google
        WEB google.com
    }
}
. {
    bind ADDRS
    template ANY ANY {
        rcode NXDOMAIN
    }
}
`

// internet starts a name server and a web server at the router, and lets the cluster's DNS ask the
// former.
func (l *lab) internet(ctx context.Context, f family, servers []string) error {
	corefile := filepath.Join(l.dir, "Corefile")
	text := strings.NewReplacer("ADDRS", strings.Join(servers, " "), "DNS", f.dns, "WEB", f.web).Replace(zone)
	if err := os.WriteFile(corefile, []byte(text), 0o644); err != nil {
		return err
	}
	coredns, err := filepath.Glob(filepath.Join(filepath.Dir(l.programs), "coredns-*", "coredns"))
	if err != nil || len(coredns) == 0 {
		return fmt.Errorf("no CoreDNS alongside %s: %v", l.programs, err)
	}
	for _, args := range [][]string{
		{coredns[len(coredns)-1], "-conf", corefile},
		{filepath.Join(l.programs, "agnhost"), "netexec", "--http-port=80", "--udp-port=-1"},
	} {
		if err := l.start("router", args...); err != nil {
			return err
		}
	}
	old, err := l.kubectl(ctx, "", "-n", "kube-system", "get", "configmap", "coredns", "-o", "jsonpath={.data.Corefile}")
	if err != nil {
		return err
	}
	with := strings.Replace(old, "    cache 5\n", "    forward . "+f.dns+"\n    cache 5\n", 1)
	if with == old {
		return fmt.Errorf("the cluster DNS' configuration has no place for a forwarder:\n%s", old)
	}
	patch := fmt.Sprintf(`{"data":{"Corefile":%q}}`, with)
	for _, args := range [][]string{
		{"patch", "configmap", "coredns", "--type=merge", "-p", patch},
		{"rollout", "restart", "deployment/coredns"},
		{"rollout", "status", "deployment/coredns", "--timeout=2m"},
	} {
		if _, err := l.kubectl(ctx, "", append([]string{"-n", "kube-system"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// down removes the lab. It also ends what internet started: those processes are in the lab's
// namespaces.
func (l *lab) down() error {
	err := command(context.Background(), "down", "--name", l.name).Run()
	for _, c := range l.run {
		_ = c.Wait()
	}
	return err
}
