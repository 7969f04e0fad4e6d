// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-net/weir/internal/cni/wire"
)

// agentReady is what the agent logs once all is programmed.
const agentReady = "the node's state is in the kernel"

// startAgent starts the agent of our node and returns how long it took until all was programmed.
func (s *site) startAgent(name, mode string) (*process, float64) {
	bpffs := filepath.Join(s.dir, "bpffs")
	s.must(os.MkdirAll(bpffs, 0o755))
	began := time.Now()
	var env []string
	if s.profile != "" {
		env = append(env, "WEIR_PROFILE_ADDR="+agentProfile)
	}
	p := s.start(name, env, filepath.Join(s.bin, "weir-agent"), "--node-name", nodeName(0), "--kubeconfig", s.server.Kubeconfig(),
		"--state-dir", filepath.Join(s.dir, "state"), "--run-dir", filepath.Join(s.dir, "run"), "--bpffs", filepath.Join(bpffs, "weir"), "--bpffs-mount", bpffs,
		"--cgroup", s.cgroup, "--cni-conf-dir", filepath.Join(s.dir, "net.d"), "--peers-dir", s.peers(), "--fanout", mode)
	s.agent = p
	s.await("the agent's state", p, 10*time.Minute, func() bool { return p.said(agentReady) })
	return p, time.Since(began).Seconds()
}

// addPods gives the pods of our node their interfaces, as a container runtime does.
func (s *site) addPods() {
	began := time.Now()
	g := errgroup.Group{}
	g.SetLimit(4)
	add := func(space, name string, t *thread) {
		path := s.netnsPath(name, t)
		g.Go(func() error {
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
				ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
				got, err := wire.Call(ctx, filepath.Join(s.dir, "run", "cni.sock"), wire.Request{Command: "ADD", Network: "weir", ContainerID: "c-" + space + "-" + name, IfName: "eth0",
					Netns: path, Namespace: space, Pod: name, IPv4: true}, t.ns)
				cancel()
				if err == nil && len(got.Addrs) == 1 {
					return nil
				}
				if time.Now().After(end) {
					return fmt.Errorf("add pod %s/%s: %+v %w", space, name, got, err)
				}
			}
		})
	}
	count := 1
	add(probeSpace, targetPod, s.pod)
	for _, p := range s.pods {
		if p.node == 0 {
			add(p.space, p.name, s.thread())
			count++
		}
	}
	s.must(g.Wait())
	s.result.AddPodsSeconds = time.Since(began).Seconds()
	s.echo(probePort, policyPort, policyPort+1, everyonePort)
	say("%d pods of our node have their interfaces after %.1f s", count, s.result.AddPodsSeconds)
}

// measureAgent measures the agent of our node, fed by a fan-out or following the API server.
func (s *site) measureAgent(fed bool) {
	mode, into := "always", &s.result.Fed
	if !fed {
		mode, into = "never", &s.result.Direct
	}
	m := &AgentResult{}
	*into = m
	if s.result.AddPodsSeconds == 0 { // the first one has no pods yet
		_, seconds := s.startAgent("agent-first", mode)
		say("the agent has started on an empty node after %.1f s", seconds)
		s.addPods()
	}
	if s.agent.cmd.ProcessState == nil {
		s.agent.stop()
	}
	p, seconds := s.startAgent("agent-"+mode, mode)
	used, err := p.cpu()
	s.must(err)
	m.StartSeconds, m.StartCPU = seconds, used.Seconds()
	m.StartRSS, m.StartPeak, _ = p.memory()
	say("the agent (--fanout %s) has started after %.1f s (%.1f s of CPU), %.0f MiB, at most %.0f", mode, seconds, m.StartCPU, m.StartRSS, m.StartPeak)
	s.probe.settle()
	time.Sleep(10 * time.Second)
	m.RSS, m.Peak, m.Anon = p.memory()
	say("the agent has %.0f MiB resident, %.0f MiB of it not of files", m.RSS, m.Anon)
	s.save()
	s.profileAll(mode+"-idle", 0)
	light, heavy := s.loads()
	for _, l := range light {
		m.Rows = append(m.Rows, s.measureRow(l, fed))
		s.save()
	}
	m.single(s, fed)
	if fed {
		s.compare()
		s.policyOfOnePod()
		s.findRate(m)
	} else if s.rate > 0 && m.row(podLoad(s.rate).name) == nil && !slices.Contains(s.rates, s.rate) {
		m.Rows = append(m.Rows, s.measureRow(podLoad(s.rate), fed))
	}
	for _, l := range heavy {
		if m.row(l.name) != nil {
			continue // it was the highest rate
		}
		m.Rows = append(m.Rows, s.measureRow(l, fed))
		s.save()
	}
	m.RSSAfter, m.PeakAfter, m.AnonAfter = p.memory()
	s.save()
}
