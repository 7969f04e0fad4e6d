// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/bench/lab"
)

//go:embed pods.yaml
var podsYAML string

// runner is one run of the benchmarks.
type runner struct {
	options
	growth []int // sizes
	sites  []*site
}

// site is a lab with the pods and servers of the benchmarks.
type site struct {
	lab               *lab.Lab
	configurations    []string
	client, near, far lab.Place
	nearIP, farIP     netip.Addr            // of the services; invalid without a data plane
	special           map[string]netip.Addr // cluster IPs of Services of one kind of run
	mode              lab.Mode
	inPath            bool // Services are not balanced at connect time
	fillers           int  // Services alongside those that are measured
	stop              []func()
}

// start brings the labs up, one after the other, and fills them.
func (r *runner) start(ctx context.Context) error {
	for name := range strings.SplitSeq(r.configurations, ",") {
		if !slices.Contains(configurations, name) {
			return fmt.Errorf("configuration %q: want some of %s", name, strings.Join(configurations, ","))
		}
		proxy, labName := name, "bench-"+strings.TrimPrefix(name, "kube-proxy-")
		if strings.HasPrefix(name, "weir-") {
			proxy = "weir"
			if name != weirNFT {
				labName = "bench-weir"
			}
		}
		if i := slices.IndexFunc(r.sites, func(s *site) bool { return s.lab.Name == labName }); i >= 0 {
			r.sites[i].configurations = append(r.sites[i].configurations, name)
			continue
		}
		l, err := lab.New(labName, proxy, r.bin, os.Stdout)
		if err != nil {
			return err
		}
		l.RealTime = r.realTime
		s := &site{lab: l, configurations: []string{name}}
		r.sites = append(r.sites, s)
	}
	for _, s := range r.sites {
		fmt.Printf("bench: lab %s, %s\n", s.lab.Name, s.lab.Proxy)
		if _, err := os.Stat(filepath.Join("/run/weir-lab", s.lab.Name)); err != nil || !r.keep {
			if err := s.lab.Up(ctx); err != nil {
				return err
			}
		}
		if slices.Contains(s.configurations, weirNFT) {
			if err := s.lab.UseNFTables(ctx); err != nil {
				return err
			}
		}
		if err := r.fill(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) close() error {
	var errs []error
	for _, s := range r.sites {
		for _, stop := range s.stop {
			stop()
		}
		if !r.keep {
			errs = append(errs, s.lab.Down())
		}
	}
	return errors.Join(errs...)
}

// fill makes what is measured in a lab.
func (r *runner) fill(ctx context.Context, s *site) error {
	if err := s.fill(ctx); err != nil {
		return err
	}
	if s.lab.Proxy != none {
		for _, special := range []struct {
			is bool
			do func(context.Context) error
		}{
			{len(r.growth) > 0 && r.growth[len(r.growth)-1] > 30000 && s.lab.Proxy == "weir", s.enlarge},
			{r.pods != "", s.serveApache},
			{r.backends > 0, func(ctx context.Context) error { return s.crowd(ctx, r.backends) }},
		} {
			if special.is {
				if err := special.do(ctx); err != nil {
					return err
				}
			}
		}
	}
	return s.reachable(ctx, r.plan())
}

// fill makes the pods and services and starts the servers, on the CPU that the clients use; the
// sinks on another.
func (s *site) fill(ctx context.Context) error {
	if _, err := s.lab.Kubectl(ctx, podsYAML, "apply", "-f", "-"); err != nil {
		return err
	}
	for name, p := range map[string]*lab.Place{"client": &s.client, "near": &s.near, "far": &s.far} {
		var err error
		if *p, err = s.lab.Pod(ctx, name); err != nil {
			return err
		}
	}
	for name, ip := range map[string]*netip.Addr{"near": &s.nearIP, "far": &s.farIP} {
		text, err := s.lab.Kubectl(ctx, "", "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		if *ip, err = netip.ParseAddr(text); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
	}
	host := s.lab.Host("worker2", lab.Worker2)
	for _, server := range []struct {
		at         lab.Place
		http, sink uint16
	}{{s.near, httpPort, sinkPort}, {s.far, httpPort, sinkPort}, {host, hostHTTPPort, hostSinkPort}} {
		http := netip.AddrPortFrom(server.at.Addr, server.http).String()
		stop, err := server.at.Serve(ctx, "--http", http, "--udp", http, "--sink", netip.AddrPortFrom(server.at.Addr, server.sink).String(),
			"--cpu", "0", "--sink-cpu", "1")
		if err != nil {
			return err
		}
		s.stop = append(s.stop, stop)
	}
	return nil
}

// reachable waits until every path that is to be measured works in the lab's configurations, and
// the one by which modes are distinguished.
func (s *site) reachable(ctx context.Context, plan []row) error {
	plan = append(plan, rows[slices.IndexFunc(rows, func(w row) bool { return w.name == rowPortRemote })])
	for _, w := range plan {
		if w.kind != requests && w.kind != apache || !w.has(s.configurations[0]) {
			continue
		}
		from, to := w.from(s), w.to(s, w.kind).String()
		var err error
		for start := time.Now(); ; {
			if _, err = from.Bench(ctx, "get", to, "--patience", "1s"); err == nil {
				break
			}
			if ctx.Err() != nil || time.Since(start) > 20*time.Second {
				return fmt.Errorf("%s does not work: %w", w.name, err)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	return nil
}

// enter switches a lab that Weir's programs carry to the configuration's settings, as far as the
// row depends on them.
func (s *site) enter(ctx context.Context, configuration string, w row) error {
	if s.lab.Proxy != "weir" || configuration == weirNFT {
		return nil
	}
	mode := lab.Tunnel
	if configuration == weirDSR {
		mode = lab.DSR
	}
	if w.modes && s.mode != mode {
		if err := s.lab.SetMode(ctx, mode); err != nil {
			return err
		}
		if _, err := lab.AwaitMode(ctx, client1(s), nodePort(lab.ControlPlane, farNode)(s, requests), mode); err != nil {
			return err
		}
		s.mode = mode
	}
	if inPath := configuration == weirPath; w.connect && s.inPath != inPath {
		if err := s.lab.SetConnectTime(ctx, !inPath); err != nil {
			return err
		}
		if err := lab.AwaitConnectTime(ctx, s.client, netip.AddrPortFrom(s.farIP, httpPort), !inPath); err != nil {
			return err
		}
		s.inPath = inPath
	}
	return nil
}

// forget empties the kernel's connection tables of the nodes.
func (s *site) forget(ctx context.Context) error {
	for _, node := range []string{"cp", "worker1", "worker2"} {
		if _, err := s.lab.Host(node, netip.Addr{}).Bench(ctx, "flush-conntrack"); err != nil {
			return err
		}
	}
	return nil
}
