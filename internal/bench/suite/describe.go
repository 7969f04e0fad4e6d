// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

// describe begins a file: what is measured, and how.
func (s *site) describe(ctx context.Context, nodes int, rows []planned) (*result.File, error) {
	o := s.o
	name := o.Name
	if name == "" {
		name = s.namespace
	}
	f := &result.File{Schema: result.Schema, Metadata: result.Metadata{Name: name, Generator: result.Generator, Version: o.Version,
		Date: time.Now().UTC().Format(time.DateTime), ServerNode: s.server, ClientNode: s.client, SocketBufferSize: "auto"},
		Cluster: result.Cluster{Nodes: nodes, Found: map[string]string{}},
		Settings: result.Settings{Tool: o.Version, Image: o.Image, Duration: o.Duration.String(), WarmUp: o.WarmUp.String(), Rounds: o.Rounds, Streams: o.Streams,
			UDPRate: o.UDPRate, Requests: o.Requests, Concurrency: o.Concurrency, Congestion: o.Congestion, Services: o.Services, Policies: o.Policies}}
	for _, r := range rows {
		f.Settings.Rows = append(f.Settings.Rows, r.id)
	}
	f.Settings.IPFamily = "IPv4"
	if s.service.To.Addr().Is6() {
		f.Settings.IPFamily = "IPv6"
	}
	if v, err := s.Kube.Discovery().ServerVersion(); err == nil {
		f.Cluster.Kubernetes, f.Data.K8sVersion = v.GitVersion, v.GitVersion
	}
	for _, n := range []struct {
		to        *result.Node
		name, pod string
	}{{&f.Cluster.Client, s.client, podClientHost}, {&f.Cluster.Server, s.server, podServerHost}} {
		got, err := s.node(ctx, n.pod)
		if err != nil {
			return nil, err
		}
		object, err := s.Kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the node %s: %w", n.name, err)
		}
		i := object.Status.NodeInfo
		*n.to = result.Node{Name: n.name, OS: i.OSImage, Runtime: i.ContainerRuntimeVersion, Kubelet: i.KubeletVersion, Node: got}
	}
	// What a pod sees of its own network says the MTU that the data plane gives.
	inner, err := s.node(ctx, podClient)
	if err != nil {
		return nil, err
	}
	c := &f.Cluster
	s.usual = c.Client.Congestion
	c.OneMachine = c.Client.Boot == c.Server.Boot
	f.Data.CPU, f.Data.Kernel, f.Data.MTU = c.Client.Model, c.Client.Kernel, fmt.Sprint(inner.MTU)
	s.settings(ctx, c.Found)
	c.DataPlane = inWords(c)
	if c.OneMachine && s.client != s.server {
		f.Warnings = append(f.Warnings, "both nodes run on one kernel: what is between them is memory, and the CPU time is of one machine")
	}
	if c.Client.Kernel != c.Server.Kernel || c.Client.Model != c.Server.Model {
		f.Warnings = append(f.Warnings, "the two nodes are not alike")
	}
	return f, nil
}

// known are settings of data planes that change what is measured: the resource, the object, and its
// fields.
var known = []struct {
	prefix          string
	gvr             schema.GroupVersionResource
	namespace, name string
	fields          []string
	under           []string
}{
	{"felix", schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "felixconfigurations"}, "", "default",
		[]string{"bpfEnabled", "bpfExternalServiceMode", "bpfConnectTimeLoadBalancing", "bpfHostNetworkedNATWithoutCTLB", "dataPlane", "nftablesMode", "wireguardEnabled"}, []string{"spec"}},
	{"felix", schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "felixconfigurations"}, "", "default",
		[]string{"bpfEnabled", "bpfExternalServiceMode", "bpfConnectTimeLoadBalancing", "bpfHostNetworkedNATWithoutCTLB", "nftablesMode", "wireguardEnabled"}, []string{"spec"}},
	{"cilium", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "kube-system", "cilium-config",
		[]string{"kube-proxy-replacement", "routing-mode", "tunnel-protocol", "bpf-lb-mode", "bpf-lb-acceleration", "datapath-mode", "enable-bpf-masquerade", "enable-wireguard"}, []string{"data"}},
}

// settings reads them; what is not there or may not be read is left out.
func (s *site) settings(ctx context.Context, found map[string]string) {
	if s.Dynamic == nil {
		return
	}
	for _, k := range known {
		var u *unstructured.Unstructured
		var err error
		if k.namespace == "" {
			u, err = s.Dynamic.Resource(k.gvr).Get(ctx, k.name, metav1.GetOptions{})
		} else {
			u, err = s.Dynamic.Resource(k.gvr).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
		}
		if err != nil {
			continue
		}
		for _, field := range k.fields {
			if v, ok, err := unstructured.NestedFieldNoCopy(u.Object, append(slices.Clone(k.under), field)...); err == nil && ok {
				found[k.prefix+"."+field] = fmt.Sprint(v)
			}
		}
	}
}

// inWords names the data plane by the daemons that run on the nodes.
func inWords(c *result.Cluster) string {
	var names []string
	for _, n := range []probe.Node{c.Client.Node, c.Server.Node} {
		for _, d := range n.Daemons {
			if !slices.Contains(names, d.Name) && d.Name != "weir-controller" && d.Name != "kube-proxy" {
				names = append(names, d.Name)
			}
		}
	}
	sort.Strings(names)
	for i, n := range names {
		switch n {
		case "weir-agent":
			names[i] = "Weir"
			if mode := c.Found["felix.bpfExternalServiceMode"]; mode != "" {
				names[i] += " (" + mode + ")"
			}
		case "calico-node":
			names[i] = "Calico"
			if c.Found["felix.bpfEnabled"] == "true" {
				names[i] += " eBPF"
			}
		case "cilium-agent":
			names[i] = "Cilium"
		}
	}
	if len(names) == 0 {
		names = []string{"no known daemon of a pod network"}
	}
	proxy := ""
	for _, n := range []probe.Node{c.Client.Node, c.Server.Node} {
		switch {
		// What replaces kube-proxy may answer in its place, with a word of its own.
		case slices.Contains([]string{"iptables", "ipvs", "nftables"}, n.KubeProxy):
			proxy = "kube-proxy " + n.KubeProxy
		case proxy == "" && slices.ContainsFunc(n.Daemons, func(d probe.Daemon) bool { return d.Name == "kube-proxy" }):
			proxy = "kube-proxy"
		}
	}
	if proxy == "" {
		proxy = "no kube-proxy"
	}
	return strings.Join(append(names, proxy), ", ")
}
