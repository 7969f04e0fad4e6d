// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/sleep"
)

const fieldManager = "weir"

var (
	crdResource        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	poolResource       = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "ippools"}
	apiServiceResource = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	felixResource      = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "felixconfigurations"}
)

type installFlags struct {
	deploy.Options
	apiServer string
	dryRun    bool
	output    string
	wait      bool
	timeout   time.Duration
}

func newInstall(o *options) *cobra.Command {
	f := &installFlags{Options: deploy.Defaults()}
	cmd := &cobra.Command{Use: "install", Short: "Install Weir in the cluster, or bring an installation up to date", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.onOther(cmd.Flags().Changed); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), o)
		}}
	flags := cmd.Flags()
	flags.StringVar(&f.Image, "image", f.Image, "image with Weir's programs")
	flags.StringVar(&f.PodCIDR, "pod-cidr", f.PodCIDR, "addresses of pods, for the first IPPool; of two families: IPv4,IPv6")
	flags.StringVar(&f.On, "on", f.On, "CNI plugin that gives pods their addresses and interfaces in the place of Weir's, whose network carries what pods send out of their node: aws-vpc-cni (Amazon's), azure-cni and azure-cni-overlay (Azure's, with pods in a subnet or in an overlay), generic (any that makes a pair of interfaces for each pod, and a host route to its address)")
	flags.StringVar(&f.From, "from", f.From, "network plugin that nodes have and are taken over from, node by node, by weir migrate: calico, while pods run, or flannel, by drain")
	flags.StringVar(&f.InterfacePrefix, "interface-prefix", f.InterfacePrefix, "with --on: how the names of pods' interfaces on the host begin (default eni for aws-vpc-cni, azv for azure-cni and azure-cni-overlay, veth for generic)")
	flags.StringVar(&f.VXLANMode, "vxlan-mode", f.VXLANMode, "encapsulation of the first IPPool: Never, Always, CrossSubnet")
	flags.StringVar(&f.ServiceExternalIPs, "service-external-ips", f.ServiceExternalIPs, "`CIDRs` that spec.externalIPs of Services may name, or none (default: every address that nobody else has)")
	flags.StringVar(&f.FanOut, "fanout", f.FanOut, "from whom agents have the cluster: auto (the fan-out, Deployment weir-fanout, from 100 nodes on, otherwise the API server), never (the API server), always (the fan-out; agents get no right to read the cluster)")
	flags.BoolVar(&f.FanOutLastResort, "fanout-last-resort", f.FanOutLastResort, "where no fan-out can be reached for minutes, agents read the API server by themselves, in turns of which one agent in twenty has one at a time; with --fanout always they have the right for it then")
	flags.BoolVar(&f.WireGuardGo, "wireguard-go", f.WireGuardGo, "install WireGuard in user space (DaemonSet weir-wireguard), for nodes whose kernel has none")
	flags.BoolVar(&f.Flows, "flows", f.Flows, "install the store of flow records (Deployment weir-flows), which weir flows asks; nodes keep records where FelixConfiguration spec.flowLogsLocalReporter is Enabled")
	flags.StringVar(&f.FlowsAge, "flows-age", f.FlowsAge, "for how long the store keeps records")
	flags.StringVar(&f.FlowsSize, "flows-size", f.FlowsSize, "`size` of the store's records on its disk at most; the oldest go first")
	flags.StringVar(&f.FlowsCoarseAfter, "flows-coarse-after", f.FlowsCoarseAfter, "the age from which on the store makes one record of those of the same ends, port and decision in five minutes; 0s = never")
	flags.StringVar(&f.FlowsOTLP, "flows-otlp", f.FlowsOTLP, "`address` of an OpenTelemetry collector that gets each flow record, too, such as https://collector.example.com:4317")
	flags.StringVar(&f.FlowsIPFIX, "flows-ipfix", f.FlowsIPFIX, "`address` of a collector of IPFIX that gets each flow record, too: tls://, tcp:// or udp://collector.example.com:4739")
	flags.StringVar(&f.FlowsExportTLS, "flows-export-tls", f.FlowsExportTLS, "`Secret` in namespace kube-system with the authorities of these collectors, ca.crt, and tls.crt and tls.key where they want a certificate")
	flags.StringVar(&f.FlowsClaim, "flows-claim", f.FlowsClaim, "`PersistentVolumeClaim` in namespace kube-system for the store's records (default: a folder of its node, which goes with the pod)")
	flags.BoolVar(&f.Hubble, "hubble", f.Hubble, "have agents that keep flow records serve Hubble's API by TLS at port 4244 of their nodes, for hubble-relay: the controller makes the certificates of agents and of clients (Secret weir-hubble-client)")
	flags.BoolVar(&f.UI, "ui", f.UI, "install the page in the browser for all users of the cluster, who log in (Deployment and Service weir-ui)")
	flags.StringVar(&f.UIOrigins, "ui-origin", f.UIOrigins, "further `origins` by which browsers reach that page, with commas between, such as https://weir.example.com of an Ingress")
	flags.BoolVar(&f.UIAPIs, "ui-apis", f.UIAPIs, "with --ui and --flows: serve Hubble's Observer API and Goldmane's Flows and Statistics over the store of flow records, too, at port 4245 of Service weir-ui, to the same users")
	flags.StringVar(&f.UIClientCA, "ui-client-ca", f.UIClientCA, "with --ui-apis: `ConfigMap` in namespace kube-system with authorities, ca.crt, whose clients need no token and see the flows of all namespaces")
	flags.StringVar(&f.UIOIDC, "ui-oidc", f.UIOIDC, "`Secret` in namespace kube-system with the issuer of OpenID Connect at which users of the page log in: issuer, client-id, and as needed client-secret, scopes, ca.crt")
	flags.StringVar(&f.UITLS, "ui-tls", f.UITLS, "`Secret` in namespace kube-system with the page's certificate, of type kubernetes.io/tls (default: one of Weir's own authority)")
	flags.BoolVar(&f.PolicyDefaults, "policy-defaults", f.PolicyDefaults, "have what policies of projectcalico.org leave out filled in when they are written, types and the label projectcalico.org/tier, by a webhook that the controller answers; it gets the right to write this webhook (see docs/design/security.md)")
	flags.StringVar(&f.apiServer, "api-server", "", "`host:port` at which nodes reach the API server without any Service (default: taken from the cluster)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the manifests, change nothing")
	flags.StringVarP(&f.output, "output", "o", "yaml", "format of --dry-run")
	flags.BoolVar(&f.wait, "wait", true, "wait until the agents are ready")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}

// onOther completes what is said of another CNI plugin; given says which flags there are.
func (f *installFlags) onOther(given func(flag string) bool) error {
	if f.On == "" {
		return nil
	}
	if given("vxlan-mode") {
		return fmt.Errorf("--vxlan-mode has no meaning with --on %s: that plugin's network carries what pods send to other nodes", f.On)
	}
	if !given("pod-cidr") {
		return fmt.Errorf("--on %s: name by --pod-cidr the networks from which that plugin gives pods their addresses", f.On)
	}
	if f.InterfacePrefix == "" {
		f.InterfacePrefix = deploy.Networks[f.On]
	}
	return nil
}

func (f *installFlags) run(ctx context.Context, out io.Writer, o *options) error {
	if f.apiServer != "" {
		var err error
		if f.APIServerHost, f.APIServerPort, err = splitServer(f.apiServer); err != nil {
			return err
		}
	}
	if f.dryRun {
		if f.output != "yaml" {
			return fmt.Errorf("--output %q is not supported: only yaml is", f.output)
		}
		text, err := deploy.Render(f.Options)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	if err := f.Validate(); err != nil {
		return err
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return f.install(ctx, out, c)
}

// splitServer reads host, host:port, or a URL as it is in a kubeconfig.
func splitServer(text string) (host, port string, err error) {
	bare := strings.TrimSuffix(strings.TrimPrefix(text, "https://"), "/")
	if host, port, err = net.SplitHostPort(bare); err == nil && host != "" {
		return host, port, nil
	}
	host = strings.Trim(bare, "[]")
	if _, err := netip.ParseAddr(host); host == "" || err != nil && strings.ContainsAny(host, ":/ ") {
		return "", "", fmt.Errorf("--api-server %q is not host:port, such as 192.0.2.10:6443", text)
	}
	return host, "6443", nil
}

func (f *installFlags) install(ctx context.Context, out io.Writer, c *clientset.Clients) error {
	server, err := c.Kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server for its version: %w", err)
	}
	fmt.Fprintf(out, "Kubernetes %s\n", server.GitVersion)
	if f.APIServerHost == "" {
		if err := f.findAPIServer(ctx, out, c); err != nil {
			return err
		}
	}
	if err := endCleanUp(ctx, out, c.Kube); err != nil {
		return err
	}
	all, err := deploy.Objects(f.Options)
	if err != nil {
		return err
	}
	var crds, rest []*unstructured.Unstructured
	for _, u := range all {
		if u.GetKind() == "CustomResourceDefinition" {
			crds = append(crds, u)
		} else {
			rest = append(rest, u)
		}
	}
	policies, err := deploy.PolicyDefinitions()
	if err != nil {
		return err
	}
	for _, crd := range policies {
		ours, err := oursOrNone(ctx, c.Dynamic, crd.GetName())
		if err != nil {
			return err
		}
		if ours {
			crds = append(crds, crd)
		} else {
			fmt.Fprintf(out, "left %s as it is\n", objects.Describe(crd))
		}
	}
	fmt.Fprintf(out, "applying %d CustomResourceDefinitions\n", len(crds))
	if err := objects.ApplyAll(ctx, out, c.Dynamic, crds, fieldManager); err != nil {
		return err
	}
	if err := waitEstablished(ctx, c.Dynamic, crds); err != nil {
		return err
	}
	if err := f.fromOther(ctx, out, c); err != nil {
		return err
	}
	fmt.Fprintln(out, "applying rights, configuration, DaemonSet weir-node, and Deployments weir-controller and weir-fanout")
	if err := f.beginWithout(ctx, out, c.Dynamic, rest); err != nil {
		return err
	}
	if err := objects.ApplyAll(ctx, out, c.Dynamic, rest, fieldManager); err != nil {
		return err
	}
	if err := sayTierless(ctx, out, c.Kube); err != nil {
		return err
	}
	if err := f.createDefaults(ctx, out, c.Dynamic); err != nil {
		return err
	}
	if !f.wait || f.From != "" {
		fmt.Fprintln(out, f.started())
		return nil
	}
	return waitRollout(ctx, out, c)
}

// findAPIServer returns the address behind the Service "kubernetes".
func (f *installFlags) findAPIServer(ctx context.Context, out io.Writer, c *clientset.Clients) error {
	slices, err := c.Kube.DiscoveryV1().EndpointSlices("default").List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return fmt.Errorf("look up the API server's own address: %w; name it with --api-server host:port", err)
	}
	var found []string
	for _, s := range slices.Items {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != "https" && *p.Name != "" {
				continue
			}
			for _, e := range s.Endpoints {
				for _, a := range e.Addresses {
					if ip, err := netip.ParseAddr(a); err == nil && !ip.IsLoopback() {
						found = append(found, net.JoinHostPort(a, fmt.Sprint(*p.Port)))
					}
				}
			}
		}
	}
	if len(found) == 0 {
		return errors.New("the Service kubernetes in namespace default has no endpoint; name the API server's address with --api-server host:port")
	}
	host, port, err := net.SplitHostPort(found[0])
	if err != nil {
		return err
	}
	f.APIServerHost, f.APIServerPort = host, port
	fmt.Fprintf(out, "nodes reach the API server at %s\n", found[0])
	if len(found) > 1 {
		fmt.Fprintf(out, "  there are %d API servers: better name their load balancer with --api-server\n", len(found))
	}
	return nil
}

// beginWithout makes the Deployment of the fan-out without replicas where it is not there yet and
// nobody waits for it: one that is applied without a number begins with one replica, and in a small
// cluster the controller would end it seconds later. The number is of a field manager of its own,
// so that what is applied next, which names none, leaves it, and the controller can change it.
func (f *installFlags) beginWithout(ctx context.Context, out io.Writer, d dynamic.Interface, all []*unstructured.Unstructured) error {
	if f.FanOut == "always" {
		return nil
	}
	for _, u := range all {
		if u.GetKind() != "Deployment" || u.GetName() != names.Name {
			continue
		}
		switch _, err := objects.Resource(d, u).Get(ctx, u.GetName(), metav1.GetOptions{}); {
		case err == nil:
			return nil
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("look at %s: %w", objects.Describe(u), err)
		}
		number := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(0)}}}
		number.SetGroupVersionKind(u.GroupVersionKind())
		number.SetNamespace(u.GetNamespace())
		number.SetName(u.GetName())
		whole := u.DeepCopy()
		if err := unstructured.SetNestedField(whole.Object, int64(0), "spec", "replicas"); err != nil {
			return err
		}
		if err := objects.Apply(ctx, out, d, whole, fieldManager); err != nil {
			return err
		}
		if err := objects.Apply(ctx, out, d, number, fieldManager+"-replicas"); err != nil {
			return err
		}
	}
	return nil
}

// oursOrNone reports whether a CustomResourceDefinition of a group that is not ours may be written:
// it is not there, or Weir brought it.
func oursOrNone(ctx context.Context, d dynamic.Interface, name string) (bool, error) {
	have, err := d.Resource(crdResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at CustomResourceDefinition %s: %w", name, err)
	}
	return have.GetLabels()[deploy.ManagedByLabel] == deploy.ManagedBy, nil
}

func waitEstablished(ctx context.Context, d dynamic.Interface, crds []*unstructured.Unstructured) error {
	for _, crd := range crds {
		for {
			got, err := d.Resource(crdResource).Get(ctx, crd.GetName(), metav1.GetOptions{})
			if err == nil && hasCondition(got, "Established") {
				break
			}
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				return fmt.Errorf("look at %s: %w", objects.Describe(crd), err)
			}
			if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
				return fmt.Errorf("%s was not established in time; see `kubectl describe crd %s`", objects.Describe(crd), crd.GetName())
			}
		}
	}
	return nil
}

// createDefaults makes the first IPPools where there is none, and the FelixConfiguration "default".
func (f *installFlags) createDefaults(ctx context.Context, out io.Writer, d dynamic.Interface) error {
	first, felix, err := deploy.DefaultObjects(f.PodCIDR, f.VXLANMode)
	if f.On != "" {
		deploy.OfOther(first)
	}
	if err != nil {
		return err
	}
	pools, err := d.Resource(poolResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	if len(pools.Items) == 0 {
		for _, pool := range first {
			_, err := d.Resource(poolResource).Create(ctx, pool, metav1.CreateOptions{FieldManager: fieldManager})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create %s: %w", objects.Describe(pool), err)
			}
			cidr, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
			fmt.Fprintf(out, "made %s with %s\n", objects.Describe(pool), cidr)
		}
	} else {
		fmt.Fprintf(out, "left the %d IPPools as they are\n", len(pools.Items))
	}
	_, err = d.Resource(felixResource).Create(ctx, felix, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create FelixConfiguration default: %w", err)
	}
	return nil
}

// waitRollout reports until every node's agent is ready and the controller runs.
func waitRollout(ctx context.Context, out io.Writer, c *clientset.Clients) error {
	start, last := time.Now(), ""
	for {
		ds, err := c.Kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, "weir-node", metav1.GetOptions{})
		var dep *appsv1.Deployment
		if err == nil {
			dep, err = c.Kube.AppsV1().Deployments(deploy.Namespace).Get(ctx, "weir-controller", metav1.GetOptions{})
		}
		if err == nil {
			s := ds.Status
			line := fmt.Sprintf("weir-node: %d of %d nodes ready, %d up to date; weir-controller: %d of 1",
				s.NumberReady, s.DesiredNumberScheduled, s.UpdatedNumberScheduled, dep.Status.ReadyReplicas)
			if line != last {
				fmt.Fprintf(out, "%4.0f s  %s\n", time.Since(start).Seconds(), line)
				last = line
			}
			if s.ObservedGeneration >= ds.Generation && s.DesiredNumberScheduled > 0 && s.NumberReady == s.DesiredNumberScheduled &&
				s.NumberAvailable == s.DesiredNumberScheduled && // after some seconds in which a new agent takes the place of the one before
				s.UpdatedNumberScheduled == s.DesiredNumberScheduled && dep.Status.ReadyReplicas > 0 && dep.Status.ObservedGeneration >= dep.Generation {
				fmt.Fprintln(out, "Weir is installed, and ready on every node.")
				return nil
			}
		} else if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			// The network of the node that this runs on may be changing at this very moment.
			fmt.Fprintf(out, "%4.0f s  %v; trying again\n", time.Since(start).Seconds(), err)
		}
		if err := sleep.For(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("weir is installed but not ready (%s): %w; see `weir status` and `kubectl -n %s logs ds/weir-node`",
				last, err, deploy.Namespace)
		}
	}
}

func newUninstall(o *options) *cobra.Command {
	var purge, clean bool
	var image string
	var timeout time.Duration
	cmd := &cobra.Command{Use: "uninstall", Short: "Remove Weir from the cluster; with --clean-nodes also what it made on nodes, with --purge its objects too", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.connect()
			if err != nil {
				return err
			}
			if !clean {
				// What stays on nodes would be in the way of pods that the other plugin starts.
				on, err := onOther(cmd.Context(), c.Kube)
				if err != nil {
					return err
				}
				clean = on != ""
			}
			if clean && image == "" {
				if image, err = imageOf(cmd.Context(), c.Kube); err != nil {
					return err
				}
			}
			if err := uninstall(cmd.Context(), cmd.OutOrStdout(), c.Dynamic, purge); err != nil || !clean {
				return err
			}
			return cleanNodes(cmd.Context(), cmd.OutOrStdout(), c.Kube, image, timeout)
		}}
	cmd.Flags().BoolVar(&clean, "clean-nodes", false, "remove everything of Weir from each node's kernel and disk too; pods there lose their network, but for those that have it of another CNI plugin (weir install --on), with which it always is done")
	cmd.Flags().StringVar(&image, "image", "", "image that cleans nodes up (default: that of the agents)")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the nodes")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the CustomResourceDefinitions too, and with them every pool, policy and setting")
	return cmd
}

// withOwnPolicyDefinitions adds those definitions of policy.networking.k8s.io that Weir brought.
func withOwnPolicyDefinitions(ctx context.Context, d dynamic.Interface, all []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	policies, err := deploy.PolicyDefinitions()
	if err != nil {
		return nil, err
	}
	for _, crd := range policies {
		ours, err := oursOrNone(ctx, d, crd.GetName())
		if err != nil {
			return nil, err
		}
		if ours {
			all = append(all, crd)
		}
	}
	return all, nil
}

func uninstall(ctx context.Context, out io.Writer, d dynamic.Interface, purge bool) error {
	o := deploy.Defaults()
	o.WireGuardGo, o.Flows, o.Hubble, o.UI, o.PolicyDefaults = true, true, true, true, true // what is there by options alone
	all, err := deploy.Objects(o)
	if err != nil {
		return err
	}
	if all, err = withOwnPolicyDefinitions(ctx, d, all); err != nil {
		return err
	}
	propagation := metav1.DeletePropagationForeground
	removed := 0
	remove := func(definitions bool) error {
		for _, u := range slices.Backward(all) {
			if (u.GetKind() == "CustomResourceDefinition") != definitions {
				continue
			}
			err := objects.Resource(d, u).Delete(ctx, u.GetName(), metav1.DeleteOptions{PropagationPolicy: &propagation})
			switch {
			case err == nil:
				removed++
				fmt.Fprintln(out, "removed", objects.Describe(u))
			case !apierrors.IsNotFound(err):
				return fmt.Errorf("remove %s: %w", objects.Describe(u), err)
			}
		}
		return nil
	}
	// The controller goes with its rights before its finalizers, so that it does not put them on
	// again.
	if err := errors.Join(remove(false), releaseFinalizers(ctx, d)); err != nil {
		return err
	}
	if purge {
		if err := remove(true); err != nil {
			return err
		}
	}
	if removed == 0 {
		fmt.Fprintln(out, "There was nothing to remove.")
		return nil
	}
	fmt.Fprintf(out, "Removed %d objects.\n", removed)
	if !purge {
		fmt.Fprintln(out, "Pools, policies and settings are kept; `weir uninstall --purge` removes them.")
	}
	fmt.Fprintln(out, "Programs and maps stay in the kernel of each node; --clean-nodes removes them, and so does a restart of the node. See docs/guides/install.md.")
	return nil
}
