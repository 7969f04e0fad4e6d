// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sort"
	"text/tabwriter"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/terminal"
	"github.com/weir-net/weir/internal/watch"
)

type ipamFlags struct {
	*options
	stateDir, node string
	blocks, force  bool
	live           bool
	output         string
}

func newIPAM(o *options) *cobra.Command {
	f := &ipamFlags{options: o}
	cmd := &cobra.Command{Use: "ipam", Short: "Show and check the use of addresses, and release leaked ones"}
	cmd.PersistentFlags().StringVar(&f.stateDir, "state-dir", ipam.DefaultDir, "allocations of this node, where there are any")
	cmd.PersistentFlags().StringVar(&f.node, "node", os.Getenv("NODE_NAME"), "name of this node ($NODE_NAME)")

	show := &cobra.Command{Use: "show", Short: "Show how much of the pools and of the blocks is used", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.show(cmd.Context(), cmd.OutOrStdout()) }}
	show.Flags().BoolVar(&f.blocks, "blocks", false, "each block, too")
	// calicoctl's name for it.
	show.Flags().BoolVar(&f.blocks, "show-blocks", false, "each block, too")
	show.Flags().StringVarP(&f.output, "output", "o", "", "json (default: a table)")

	check := &cobra.Command{Use: "check", Short: "Find unused pools, leaks and addresses in double use; exit code 1 if there are any", Args: cobra.NoArgs,
		Long: `Compares pools, blocks, nodes and pods of the cluster. With --live it asks the agents for the allocations of their
nodes and compares these as well. On a node (kubectl -n kube-system exec POD -- /weir ipam check) it compares those of this
node, with the rights of the agent: where agents have the cluster from a fan-out alone (--fanout=always), use --live.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.check(cmd.Context(), cmd.OutOrStdout()) }}

	check.Flags().BoolVar(&f.live, "live", false, "ask the agents of all nodes for their allocations (rights: ClusterRole weir-viewer)")

	release := &cobra.Command{Use: "release (CIDR | ADDRESS)", Short: "Give back a block of a node that is gone, or an address of this node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.release(cmd.Context(), cmd.OutOrStdout(), args[0])
		}}
	release.Flags().BoolVar(&f.force, "force", false, "release an address without asking the API server whether a pod has it")
	cmd.AddCommand(show, check, release)
	return cmd
}

// inventory reads the cluster's objects.
func (f *ipamFlags) inventory(ctx context.Context, c *clientset.Clients) (ipam.Inventory, error) {
	inv := ipam.Inventory{Nodes: map[string]bool{}}
	pools, err := listTyped[v3.IPPool](ctx, c, "ippools")
	if err != nil {
		return inv, err
	}
	sort.Slice(pools, func(i, j int) bool {
		a, b := pools[i].CreationTimestamp, pools[j].CreationTimestamp
		if !a.Equal(&b) {
			return a.Before(&b)
		}
		return pools[i].Name < pools[j].Name
	})
	for i := range pools {
		p, problems := watch.ConvertPool(&pools[i])
		inv.Broken = append(inv.Broken, problems...)
		if p != nil {
			inv.Pools = append(inv.Pools, *p)
		}
	}
	reservations, err := listTyped[v3.IPReservation](ctx, c, "ipreservations")
	if err != nil {
		return inv, err
	}
	for i := range reservations {
		r, problems := watch.ConvertReservation(&reservations[i])
		inv.Broken = append(inv.Broken, problems...)
		inv.Reservations = append(inv.Reservations, r.CIDRs...)
	}
	if inv.Blocks, err = ipam.NewAPIBlocks(c.Dynamic, "").List(ctx); err != nil {
		return inv, err
	}
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return inv, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		inv.Nodes[nodes.Items[i].Name] = true
	}
	pods, err := c.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return inv, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		p, _ := watch.ConvertPod(&pods.Items[i])
		inv.Pods = append(inv.Pods, p)
	}
	services, err := c.Kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return inv, fmt.Errorf("list services: %w", err)
	}
	for i := range services.Items {
		if b, ok := balancer(&services.Items[i]); ok {
			inv.Balancers = append(inv.Balancers, b)
		}
	}
	return inv, nil
}

// balancer returns a Service of type LoadBalancer with its addresses.
func balancer(s *corev1.Service) (ipam.Balancer, bool) {
	out := ipam.Balancer{Name: model.Name{Namespace: s.Namespace, Name: s.Name}, UID: string(s.UID)}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out.Addrs = append(out.Addrs, a.Unmap())
		}
	}
	return out, s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// addRecords adds the allocations of this node, if this is a node.
func (f *ipamFlags) addRecords(inv *ipam.Inventory) error {
	if !f.onNode() {
		return nil
	}
	has, err := ipam.ReadDir(f.stateDir)
	if err != nil {
		return fmt.Errorf("read the allocations of node %s: %w", f.node, err)
	}
	inv.AddRecords(f.node, has)
	return nil
}

// onNode reports whether this is a node with allocations, as an agent's pod is.
func (f *ipamFlags) onNode() bool {
	_, err := os.Stat(f.stateDir)
	return f.node != "" && err == nil
}

// whereAllowed says what to do where an agent may not read the cluster.
func (f *ipamFlags) whereAllowed(err error, otherwise string) error {
	if !apierrors.IsForbidden(err) || !f.onNode() {
		return err
	}
	return fmt.Errorf("%w; where agents have the cluster from a fan-out alone (--fanout=always) they may not read this: %s", err, otherwise)
}

// recordsOf asks the agents of all nodes, by ask, for the allocations of their nodes. What keeps
// one from answering is returned as a text.
func recordsOf(inv *ipam.Inventory, ask func(node string, into *ipam.NodeRecords) error) (silent []string) {
	nodes := slices.Sorted(maps.Keys(inv.Nodes))
	answers := make([]ipam.NodeRecords, len(nodes))
	for i, err := range agentapi.Each(nodes, func(i int, node string) error { return ask(node, &answers[i]) }) {
		if err != nil {
			silent = append(silent, fmt.Sprintf("the allocations of node %s were not compared: %v", nodes[i], err))
			continue
		}
		inv.AddRecords(nodes[i], answers[i])
	}
	return silent
}

// askRecords is recordsOf the cluster.
func (f *ipamFlags) askRecords(ctx context.Context, c *clientset.Clients, inv *ipam.Inventory) ([]string, error) {
	asker, err := f.asker(c)
	if err != nil {
		return nil, err
	}
	return recordsOf(inv, func(node string, into *ipam.NodeRecords) error {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return asker.AskJSON(ctx, node, wire.Question{Path: ipam.RecordsPath}, into)
	}), nil
}

func listTyped[T any](ctx context.Context, c *clientset.Clients, resource string) ([]T, error) {
	list, err := c.Dynamic.Resource(v3.SchemeGroupVersion.WithResource(resource)).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, explain("list", resource, "", err)
	}
	out := make([]T, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &out[i]); err != nil {
			return nil, fmt.Errorf("read %s: %w", objects.Describe(&unstructured.Unstructured{Object: list.Items[i].Object}), err)
		}
	}
	return out, nil
}

func (f *ipamFlags) show(ctx context.Context, out io.Writer) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	inv, err := f.inventory(ctx, c)
	if err != nil {
		return f.whereAllowed(err, "run weir ipam show with the rights of a user that may")
	}
	if err := f.addRecords(&inv); err != nil {
		return err
	}
	usage := ipam.Show(inv)
	switch f.output {
	case "":
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(usage)
	default:
		return fmt.Errorf("--output %q is not supported: only json is", f.output)
	}
	if len(usage.Pools) == 0 {
		fmt.Fprintln(out, "There are no IPPools; `weir install` makes the first one.")
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "POOL\tCIDR\tADDRESSES\tBLOCKS\tIN USE\tFREE")
	for _, p := range usage.Pools {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", p.Pool, p.CIDR, count(p.Size), p.Blocks, share(float64(p.InUse), p.Size), share(p.Size-float64(p.InUse), p.Size))
	}
	if f.blocks {
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w, "\nBLOCK\tNODE\tADDRESSES\tPOOL\tIN USE\tFREE")
		for _, b := range usage.Blocks {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", b.CIDR, b.Node, count(b.Size), terminal.Dash(b.Pool), share(float64(b.InUse), b.Size), share(b.Size-float64(b.InUse), b.Size))
		}
	}
	return w.Flush()
}

func share(n, of float64) string { return fmt.Sprintf("%s (%.0f%%)", count(n), 100*n/of) }

// count writes a number of addresses; those of IPv6 are too long to be read in full.
func count(n float64) string {
	if n >= 1e10 {
		return fmt.Sprintf("%.4g", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func (f *ipamFlags) check(ctx context.Context, out io.Writer) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	inv, err := f.inventory(ctx, c)
	if err != nil {
		return f.whereAllowed(err, "run weir ipam check --live with the rights of a user that may, such as ClusterRole weir-viewer gives; it compares the allocations of all nodes")
	}
	var silent []string
	if f.live {
		silent, err = f.askRecords(ctx, c, &inv)
	} else {
		err = f.addRecords(&inv)
	}
	if err != nil {
		return err
	}
	scope := "the cluster"
	if f.live || len(inv.Records) > 0 {
		scope += " and the " + allocations(inv.Records)
	}
	fmt.Fprintf(out, "Looked at %s: %d pools, %d blocks, %d nodes, %d pods, %d load balancers.\n", scope, len(inv.Pools), len(inv.Blocks), len(inv.Nodes), len(inv.Pods), len(inv.Balancers))
	problems := ipam.Check(inv)
	for _, s := range silent {
		fmt.Fprintln(out, terminal.OneLine(s))
	}
	if len(problems) == 0 && len(silent) == 0 {
		fmt.Fprintln(out, "Nothing leaked, and nothing is used twice.")
		return nil
	}
	for _, p := range problems {
		fmt.Fprintln(out, terminal.OneLine(p.String()))
	}
	fmt.Fprintf(out, "There are %d findings.\n", len(problems)+len(silent))
	return errUnhealthy
}

// allocations says how many there are on which nodes.
func allocations(records map[string][]ipam.Record) string {
	n := 0
	for _, of := range records {
		n += len(of)
	}
	if nodes := slices.Collect(maps.Keys(records)); len(nodes) == 1 {
		return fmt.Sprintf("%d allocations of node %s", n, nodes[0])
	}
	return fmt.Sprintf("%d allocations of %d nodes", n, len(records))
}

func (f *ipamFlags) release(ctx context.Context, out io.Writer, what string) error {
	if cidr, err := netip.ParsePrefix(what); err == nil {
		return f.releaseBlock(ctx, out, cidr)
	}
	addr, err := netip.ParseAddr(what)
	if err != nil || addr.Zone() != "" {
		return fmt.Errorf("%q is neither a block such as 10.244.0.0/26 nor an address", what)
	}
	return f.releaseAddress(ctx, out, addr.Unmap())
}

func (f *ipamFlags) releaseBlock(ctx context.Context, out io.Writer, cidr netip.Prefix) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	inv, err := f.inventory(ctx, c)
	if err != nil {
		return f.whereAllowed(err, "run weir ipam release with the rights of a user that may")
	}
	if err := f.addRecords(&inv); err != nil {
		return err
	}
	if err := ipam.ReleaseBlock(ctx, inv, cidr, func(node string) ipam.Blocks { return ipam.NewAPIBlocks(c.Dynamic, node) }); err != nil {
		return err
	}
	fmt.Fprintf(out, "block %s was given back\n", cidr)
	return nil
}

// releaseAddress removes an allocation of this node, unless a pod has the address.
func (f *ipamFlags) releaseAddress(ctx context.Context, out io.Writer, addr netip.Addr) error {
	if !f.force {
		if err := f.unused(ctx, addr); err != nil {
			return err
		}
	}
	r, err := ipam.ReleaseFile(f.stateDir, addr)
	if err != nil {
		return fmt.Errorf("%w; run this on the node that has the address: kubectl -n kube-system exec POD -- /weir ipam release %s", err, addr)
	}
	fmt.Fprintf(out, "address %s was released", addr)
	if r.ContainerID != "" {
		fmt.Fprintf(out, "; it belonged to container %s of pod %s", r.ContainerID, r.PodName())
	}
	fmt.Fprintln(out)
	return nil
}

// unused returns an error when a pod has an address, or when that cannot be found out.
func (f *ipamFlags) unused(ctx context.Context, addr netip.Addr) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	var pods []corev1.Pod
	switch list, err := c.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); {
	case err == nil:
		pods = list.Items
	case apierrors.IsForbidden(err) && f.onNode():
		// An agent that has the cluster from a fan-out alone may read pods that it knows by name.
		if pods, err = f.podOf(ctx, c, addr); err != nil {
			return err
		}
	default:
		return fmt.Errorf("ask whether a pod has %s: %w; --force releases it without asking", addr, err)
	}
	for i := range pods {
		p, _ := watch.ConvertPod(&pods[i])
		if !p.Finished && !p.HostNetwork && slices.Contains(p.Addrs, addr) {
			return fmt.Errorf("address %s belongs to pod %s: delete the pod, and it is released", addr, p.Name)
		}
	}
	return nil
}

// podOf returns the pod that the allocation of an address names, if the API has it.
func (f *ipamFlags) podOf(ctx context.Context, c *clientset.Clients, addr netip.Addr) ([]corev1.Pod, error) {
	has, err := ipam.ReadDir(f.stateDir)
	if err != nil {
		return nil, err
	}
	var name model.Name
	for _, r := range has.Records {
		if r.Address == addr {
			name = r.PodName()
		}
	}
	if name.Name == "" {
		return nil, fmt.Errorf("no allocation of this node that can be read names the pod of %s, so the API cannot be asked for it; --force releases it without asking", addr)
	}
	switch pod, err := c.Kube.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask whether pod %s has %s: %w; --force releases it without asking", name, addr, err)
	default:
		return []corev1.Pod{*pod}, nil
	}
}
