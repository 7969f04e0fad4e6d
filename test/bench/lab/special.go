// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/bench/lab"
	"github.com/weir-net/weir/internal/bench/store"
)

const (
	// podsPerService is how many pods are behind each Service that only makes a cluster large.
	podsPerService = 2
	// maxBackends are the ports from crowdPort on that no client takes for itself.
	maxBackends = 10000
)

// apacheYAML is the Service that ApacheBench asks.
const apacheYAML = `
apiVersion: v1
kind: Service
metadata: {name: ab}
spec: {selector: {app: far}, ports: [{port: 8090}]}
`

// crowdYAML are the Services of one and of many backends. Their EndpointSlices are made by hand.
const crowdYAML = `
apiVersion: v1
kind: Service
metadata: {name: one}
spec: {type: NodePort, ports: [{name: http, port: 20000, nodePort: 30610}]}
---
apiVersion: v1
kind: Service
metadata: {name: many}
spec: {type: NodePort, ports: [{name: http, port: 20000, nodePort: 30611}]}
`

// apply makes Services and notes their cluster IPs.
func (s *site) apply(ctx context.Context, yaml string, names ...string) error {
	if _, err := s.lab.Kubectl(ctx, yaml, "apply", "-f", "-"); err != nil {
		return err
	}
	if s.special == nil {
		s.special = map[string]netip.Addr{}
	}
	for _, name := range names {
		text, err := s.lab.Kubectl(ctx, "", "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		if s.special[name], err = netip.ParseAddr(text); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
	}
	return nil
}

// serveApache starts what ApacheBench asks.
func (s *site) serveApache(ctx context.Context) error {
	stop, err := s.far.Serve(ctx, "--http", netip.AddrPortFrom(s.far.Addr, apachePort).String(), "--close", "--cpu", "0")
	if err != nil {
		return err
	}
	s.stop = append(s.stop, stop)
	return s.apply(ctx, apacheYAML, "ab")
}

// crowd makes a Service of many backends, and one of one alongside it. The backends are ports of
// the pod "far", where one server answers at all of them: each is an endpoint of its own, and all
// take the same time.
func (s *site) crowd(ctx context.Context, n int) error {
	stop, err := s.far.Serve(ctx, "--http", netip.AddrPortFrom(s.far.Addr, crowdPort).String(), "--http-ports", strconv.Itoa(n), "--cpu", "0")
	if err != nil {
		return err
	}
	s.stop = append(s.stop, stop)
	if err := s.apply(ctx, crowdYAML, "one", "many"); err != nil {
		return err
	}
	many := store.Service{Namespace: "default", Name: "many"}
	for i := range n {
		many.Endpoints = append(many.Endpoints, store.Endpoint{Addr: s.far.Addr, Port: crowdPort + uint16(i), Node: s.far.Machine})
	}
	one := store.Service{Namespace: "default", Name: "one", Endpoints: many.Endpoints[:1]}
	began := time.Now()
	if err := lab.Store(s.lab.Name).Make(ctx, []store.Service{one, many}, nil); err != nil {
		return fmt.Errorf("filling lab %s: %w", s.lab.Name, err)
	}
	config, err := lab.REST(s.lab.Name)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := s.awaitCanary(ctx, kube); err != nil {
		return err
	}
	fmt.Printf("  %s: a Service of %d backends in force after %.1f s\n", s.lab.Proxy, n, time.Since(began).Seconds())
	return nil
}

// enlarge gives the agents maps for more Services than the defaults have room for. An agent reads
// sizes when it starts.
func (s *site) enlarge(ctx context.Context) error {
	const patch = `{"spec":{"bpfMapSizeNATFrontend":262144,"bpfMapSizeNATBackend":1048576}}`
	if _, err := s.lab.Weir(ctx, "patch", "felixconfiguration", "default", "--patch", patch); err != nil {
		return err
	}
	select { // the agents note what is in force for their next start
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(3 * time.Second):
	}
	for _, args := range [][]string{{"rollout", "restart", "daemonset/weir-node"}, {"rollout", "status", "daemonset/weir-node", "--timeout=180s"}} {
		if _, err := s.lab.Kubectl(ctx, "", append([]string{"-n", "kube-system"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}
