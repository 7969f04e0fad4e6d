// SPDX-License-Identifier: Apache-2.0

// Package nodes changes the nodes of a cluster from Calico to Weir while their pods run, one after
// the other, and back. What is done on a node does its agent (internal/agent/fromcalico); this is
// what the API server is told: where which daemon runs, whose blocks are whose, and which addresses
// are nobody's. Every step may be repeated. See docs/design/migration.md.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/objects"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/terminal"
)

// Manager is the field manager of what is applied.
const Manager = "weir-migrate"

// Labels of agents, and of processes that speak BGP.
const (
	weirNode = "k8s-app=weir-node"
	weirBGP  = "k8s-app=weir-bgp"
)

// reservation is the IPReservation of the addresses that tunnels of nodes have with Calico.
const reservation = "calico-tunnels"

// Change changes nodes.
type Change struct {
	Clients *clientset.Clients
	Cluster *calico.Cluster // as it was read
	Out     io.Writer
	Timeout time.Duration // for each step of a node
}

func (c *Change) say(format string, args ...any) {
	fmt.Fprintln(c.Out, terminal.OneLine(fmt.Sprintf(format, args...)))
}

// Network is which network a node has, by its label; empty = Calico's.
func Network(n *corev1.Node) string { return n.Labels[deploy.NetworkLabel] }

// Prepare has Calico run on nodes alone that are not changed, and neither give addresses of one
// node's blocks to pods of another, nor Weir those of tunnels.
func (c *Change) Prepare(ctx context.Context) error {
	if err := c.installed(ctx, "calico"); err != nil {
		return err
	}
	if err := c.strictAffinity(ctx); err != nil {
		return err
	}
	if err := c.reserveTunnels(ctx); err != nil {
		return err
	}
	for i := range c.Cluster.Nodes {
		n := &c.Cluster.Nodes[i]
		if Network(n) != "" {
			continue
		}
		if err := c.makeTunnelBlocks(ctx, n); err != nil {
			return err
		}
	}
	return c.stayAway(ctx, c.Cluster.Daemon.Namespace, calico.NodeDaemon)
}

// installed waits until Weir can run on nodes.
func (c *Change) installed(ctx context.Context, from string) error {
	if _, err := c.Clients.Kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, "weir-node", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("look for DaemonSet weir-node: %w; install Weir first: weir install --from %s", err, from)
	}
	// Before the other plugin ends anywhere it has to be known that nodes get the image.
	return c.await(ctx, "Deployment weir-controller is ready", func(ctx context.Context) error {
		d, err := c.Clients.Kube.AppsV1().Deployments(deploy.Namespace).Get(ctx, "weir-controller", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas == 0 {
			err = errors.New("none of its pods is (kubectl -n " + deploy.Namespace + " describe pods -l k8s-app=weir-controller)")
		}
		return err
	})
}

func (c *Change) strictAffinity(ctx context.Context) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": calico.Group + "/v1", "kind": "IPAMConfig", "metadata": map[string]any{"name": "default"},
		"spec": map[string]any{"strictAffinity": true, "autoAllocateBlocks": true}}}
	api := c.Clients.Dynamic.Resource(calico.IPAMConfigs)
	_, err := api.Create(ctx, u, metav1.CreateOptions{FieldManager: Manager})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.Patch(ctx, "default", types.MergePatchType, []byte(`{"spec":{"strictAffinity":true}}`), metav1.PatchOptions{FieldManager: Manager})
	}
	if err != nil {
		return fmt.Errorf("set strictAffinity in IPAMConfig default of %s: %w", calico.Group, err)
	}
	return nil
}

func (c *Change) reserveTunnels(ctx context.Context) error {
	var cidrs []any
	for i := range c.Cluster.Nodes {
		for _, a := range calico.TunnelAddrs(&c.Cluster.Nodes[i]) {
			cidrs = append(cidrs, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	if len(cidrs) == 0 { // no pool has a tunnel
		return nil
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "IPReservation",
		"metadata": map[string]any{"name": reservation}, "spec": map[string]any{"reservedCIDRs": cidrs}}}
	return objects.Apply(ctx, io.Discard, c.Clients.Dynamic, u, Manager)
}

// stayAway keeps the DaemonSet of another plugin off nodes that are changed. Its pods on others are
// not made again for that.
func (c *Change) stayAway(ctx context.Context, namespace, daemon string) error {
	api := c.Clients.Kube.AppsV1().DaemonSets(namespace)
	not := corev1.NodeSelectorRequirement{Key: deploy.NetworkLabel, Operator: corev1.NodeSelectorOpDoesNotExist}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ds, err := api.Get(ctx, daemon, metav1.GetOptions{})
		if err != nil {
			return err
		}
		spec := &ds.Spec.Template.Spec
		if spec.Affinity == nil {
			spec.Affinity = &corev1.Affinity{}
		}
		if spec.Affinity.NodeAffinity == nil {
			spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
		}
		at := &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		if *at == nil {
			*at = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
		}
		changed := false
		for i := range (*at).NodeSelectorTerms {
			t := &(*at).NodeSelectorTerms[i]
			if !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.Key == not.Key && r.Operator == not.Operator }) {
				t.MatchExpressions, changed = append(t.MatchExpressions, not), true
			}
		}
		if !changed {
			return nil
		}
		ds.Spec.UpdateStrategy.Type, ds.Spec.UpdateStrategy.RollingUpdate = "OnDelete", nil
		_, err = api.Update(ctx, ds, metav1.UpdateOptions{FieldManager: Manager})
		return err
	})
	if err != nil {
		return fmt.Errorf("keep DaemonSet %s off nodes that are changed: %w", daemon, err)
	}
	return nil
}

// makeTunnelBlocks makes blocks of the addresses of a node's tunnels with Calico, by which nodes
// with Weir know them.
func (c *Change) makeTunnelBlocks(ctx context.Context, n *corev1.Node) error {
	for _, a := range calico.TunnelAddrs(n) {
		if err := c.makeBlock(ctx, netip.PrefixFrom(a, a.BitLen()), n.Name); err != nil {
			return err
		}
	}
	return nil
}

// makeBlock makes a block of a node with Weir; one that is there has to be that node's.
func (c *Change) makeBlock(ctx context.Context, cidr netip.Prefix, node string) error {
	err := ipam.NewAPIBlocks(c.Clients.Dynamic, node).Claim(ctx, cidr, "")
	if errors.Is(err, ipam.ErrTaken) {
		have, getErr := client.Blocks(c.Clients.Dynamic).Get(ctx, weirv1.BlockName(cidr))
		if getErr == nil && have.Spec.Node == node {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("make block %s that of node %s: %w", cidr, node, err)
	}
	return nil
}

// Forward changes a node to Weir.
func (c *Change) Forward(ctx context.Context, name string) error {
	n, err := c.node(ctx, name)
	if err != nil {
		return err
	}
	before, err := c.pods(ctx, name)
	if err != nil {
		return err
	}
	if c.Cluster.UsesIPIP() {
		if err := c.kernelHasIPIP(ctx, name); err != nil {
			return err
		}
	}
	c.say("%s: %d pods; Calico ends", name, len(before))
	if err := c.label(ctx, name, deploy.NetworkChanging); err != nil {
		return err
	}
	if err := c.await(ctx, name+": pod calico-node has ended", func(ctx context.Context) error {
		return c.gone(ctx, c.Cluster.Daemon.Namespace, "k8s-app="+calico.NodeDaemon, name)
	}); err != nil {
		return err
	}
	for _, a := range calico.TunnelAddrs(n) {
		if err := ipam.NewAPIBlocks(c.Clients.Dynamic, name).Release(ctx, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	if err := c.takeBlocks(ctx, name, false); err != nil {
		return err
	}
	if err := c.label(ctx, name, deploy.NetworkWeir); err != nil {
		return err
	}
	c.say("%s: Weir begins", name)
	if err := c.await(ctx, name+": Weir has the node and its pods", func(ctx context.Context) error { return c.well(ctx, name) }); err != nil {
		return err
	}
	// Calico's plugin may have claimed one for a pod that it was starting at that moment.
	if err := c.takeBlocks(ctx, name, true); err != nil {
		return err
	}
	if err := c.networkAvailable(ctx, name); err != nil {
		return err
	}
	if err := c.unchanged(ctx, name, before); err != nil {
		return err
	}
	c.say("%s: changed; %d pods run on as they were", name, len(before))
	return nil
}

// takeBlocks makes Calico's blocks of a node those of Weir, and with seal has Calico give no more
// of them.
func (c *Change) takeBlocks(ctx context.Context, name string, seal bool) error {
	list, err := c.blocks(ctx, name)
	if err != nil {
		return err
	}
	for _, u := range list {
		b, _, err := calico.ReadBlock(u)
		if err != nil {
			return err
		}
		if err := c.makeBlock(ctx, b.CIDR, name); err != nil {
			return err
		}
		if seal {
			if err := c.rewrite(ctx, u.GetName(), calico.Seal); err != nil {
				return err
			}
		}
	}
	return nil
}

// blocks are Calico's of a node.
func (c *Change) blocks(ctx context.Context, name string) ([]*unstructured.Unstructured, error) {
	list, err := c.Clients.Dynamic.Resource(calico.IPAMBlocks).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Calico's blocks: %w", err)
	}
	var out []*unstructured.Unstructured
	for i := range list.Items {
		b, ok, err := calico.ReadBlock(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if !ok || b.Node != name {
			continue
		}
		for _, a := range b.Allocations {
			if a.Node != "" && a.Node != name {
				return nil, fmt.Errorf("node %s has address %s of a block of node %s: delete pod %s/%s first", a.Node, a.Address, name, a.Namespace, a.Pod)
			}
		}
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// rewrite changes an IPAMBlock of Calico's.
func (c *Change) rewrite(ctx context.Context, name string, change func(*unstructured.Unstructured) error) error {
	api := c.Clients.Dynamic.Resource(calico.IPAMBlocks)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		u, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := change(u); err != nil {
			return err
		}
		_, err = api.Update(ctx, u, metav1.UpdateOptions{FieldManager: Manager})
		return err
	})
	if err != nil {
		return fmt.Errorf("change IPAMBlock %s of Calico: %w", name, err)
	}
	return nil
}

func (c *Change) node(ctx context.Context, name string) (*corev1.Node, error) {
	n, err := c.Clients.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look at node %s: %w", name, err)
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status != corev1.ConditionTrue {
			return nil, fmt.Errorf("node %s is not ready: %s", name, cond.Message)
		}
	}
	return n, nil
}

// label sets the label of a node that says which network it has; empty = Calico's.
func (c *Change) label(ctx context.Context, name, value string) error {
	text := "null"
	if value != "" {
		text = `"` + value + `"`
	}
	patch := `{"metadata":{"labels":{"` + deploy.NetworkLabel + `":` + text + `}}}`
	if _, err := c.Clients.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: Manager}); err != nil {
		return fmt.Errorf("label node %s: %w", name, err)
	}
	return nil
}

// networkAvailable takes back what calico-node says of a node when it ends.
func (c *Change) networkAvailable(ctx context.Context, name string) error {
	now := metav1.Now().UTC().Format(time.RFC3339)
	patch := `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"WeirIsUp","message":"Weir carries the pods of this node","lastTransitionTime":"` +
		now + `","lastHeartbeatTime":"` + now + `"}]}}`
	if _, err := c.Clients.Kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: Manager}, "status"); err != nil {
		return fmt.Errorf("say that the network of node %s is available: %w", name, err)
	}
	return nil
}

// gone is an error while a pod of a label is on a node.
func (c *Change) gone(ctx context.Context, namespace, selector, node string) error {
	list, err := c.Clients.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: "spec.nodeName=" + node})
	if err == nil && len(list.Items) > 0 {
		err = fmt.Errorf("pod %s is still there", list.Items[0].Name)
	}
	return err
}

// pods are those of a node that run with a network of their own, by their name: their identity,
// address, and how often their containers were started.
func (c *Change) pods(ctx context.Context, node string) (map[string]string, error) {
	list, err := c.Clients.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node + ",status.phase=Running"})
	if err != nil {
		return nil, fmt.Errorf("look for the pods of node %s: %w", node, err)
	}
	out := map[string]string{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.HostNetwork || p.DeletionTimestamp != nil {
			continue
		}
		restarts := int32(0)
		for _, s := range p.Status.ContainerStatuses {
			restarts += s.RestartCount
		}
		out[p.Namespace+"/"+p.Name] = fmt.Sprintf("%s, address %s, %d restarts", p.UID, p.Status.PodIP, restarts)
	}
	return out, nil
}

// unchanged is an error where pods of a node are not what they were before.
func (c *Change) unchanged(ctx context.Context, node string, before map[string]string) error {
	after, err := c.pods(ctx, node)
	if err != nil {
		return err
	}
	if lost := compare(before, after); lost != "" {
		return fmt.Errorf("node %s: %s", node, lost)
	}
	return nil
}

// compare says which pods are not what they were.
func compare(before, after map[string]string) string {
	var out []string
	for name, was := range before {
		if now := after[name]; now != was {
			out = append(out, fmt.Sprintf("pod %s was %s and is %q", name, was, now))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// ready is an error while no pod of a DaemonSet is ready on a node.
func (c *Change) ready(ctx context.Context, namespace, selector, node string) error {
	list, err := c.Clients.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	ready := slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
	})
	if !ready {
		return fmt.Errorf("its pod of %s is not ready", selector)
	}
	return nil
}

// well is an error while Weir does not have a node and all pods that run there.
func (c *Change) well(ctx context.Context, name string) error {
	pods, err := c.pods(ctx, name)
	if err != nil {
		return err
	}
	endpoints, err := c.agent(ctx, name)
	if err == nil && endpoints < len(pods) {
		err = fmt.Errorf("the agent has %d of %d pods", endpoints, len(pods))
	}
	return err
}

// agent says of how many pods a node's agent is in charge. It is an error while that is not well.
func (c *Change) agent(ctx context.Context, name string) (endpoints int, err error) {
	if err := c.ready(ctx, deploy.Namespace, weirNode, name); err != nil {
		return 0, err
	}
	s, err := client.NodeStatuses(c.Clients.Dynamic).Get(ctx, name)
	if err != nil {
		return 0, err
	}
	for _, cond := range s.Status.Conditions {
		if cond.Type == weirv1.ConditionReady && cond.Status != "True" {
			return 0, fmt.Errorf("%s: %s", cond.Reason, cond.Message)
		}
	}
	if b := s.Status.BGP; b != nil && b.Established < b.Sessions {
		return 0, fmt.Errorf("%d of %d BGP sessions are established (weir bgp peers)", b.Established, b.Sessions)
	}
	return int(s.Status.Endpoints), nil
}

// await waits until look finds nothing missing.
func (c *Change) await(ctx context.Context, what string, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	begun := time.Now()
	var missing error
	for {
		err := look(ctx)
		if err == nil {
			c.say("%s (%.1f s)", what, time.Since(begun).Seconds())
			return nil
		}
		if missing == nil || ctx.Err() == nil { // not what a request says that the end cut short
			missing = err
		}
		if sleep.For(ctx, 250*time.Millisecond) != nil {
			return fmt.Errorf("not so within %s: %s: %w", c.Timeout, what, missing)
		}
	}
}
