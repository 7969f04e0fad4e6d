// SPDX-License-Identifier: Apache-2.0

// Package fromflannel takes a node over from flannel once its pods are drained: the network
// configuration is set aside, and flannel's tunnel, rules and bridge are removed, because Weir's
// tunnel speaks the same VXLAN at the same port. It knows the MAC addresses that nodes with flannel
// take frames at. flannel enforces no policy, so nothing has to stay in force meanwhile.
package fromflannel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agent/fromcalico"
	"github.com/weir-net/weir/internal/iptables"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/migrate/flannel"
	"github.com/weir-net/weir/internal/sleep"
)

// Plugin is the value of fromcalico.Environment that has an agent take its node over.
const Plugin = "flannel"

// bridge is the device that flannel's plugin has the plugin bridge make, unless its configuration
// names another one, which stays then.
const bridge = "cni0"

// anyMAC is what nodes with Weir are sent frames at: they take all.
var anyMAC = [6]byte{0x02, 'w', 'e', 'i', 'r', 1}

// every is how often MAC addresses and the bridge are looked at.
const every = 2 * time.Second

// Node is a node that is taken over. A nil Node is one that is not.
type Node struct {
	name    string
	confDir string // where the container runtime looks for network configurations
	api     dynamic.Interface
	log     *slog.Logger
	nodes   atomic.Pointer[map[string]*corev1.Node]
}

// Open returns the node if the environment of its agent says that it is taken over, else nil.
func Open(environ []string, node, confDir string, api dynamic.Interface, log *slog.Logger) *Node {
	if !slices.Contains(environ, fromcalico.Environment+"="+Plugin) {
		return nil
	}
	return &Node{name: node, confDir: confDir, api: api, log: log}
}

// Begin removes what flannel has on the node. It is called before anything is written that flannel
// would write otherwise, and is an error while flannel runs there.
func (n *Node) Begin(ctx context.Context) error {
	if n == nil {
		return nil
	}
	list, err := n.api.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name + ",status.phase=Running", LabelSelector: flannel.AppLabel + "=" + flannel.App})
	if err != nil {
		return fmt.Errorf("look for flannel's pod on this node: %w", err)
	}
	for _, p := range list.Items {
		if host, _, _ := unstructured.NestedBool(p.Object, "spec", "hostNetwork"); host {
			return fmt.Errorf("pod %s/%s still runs on this node: flannel has to end first (weir migrate --from flannel --apply does that)", p.GetNamespace(), p.GetName())
		}
	}
	if err := n.read(ctx); err != nil {
		return err
	}
	if err := n.setAside(); err != nil {
		return err
	}
	removed, err := iptables.Remove(rules)
	if err := errors.Join(err, removeTunnels()); err != nil {
		return err
	}
	n.log.Info("removed what flannel had written", "rules", removed.Rules, "chains", removed.Chains)
	return nil
}

// rules are flannel's chains, and its rules in chains of others, which bear its comments.
var rules = iptables.Owner{
	Chain:   func(name string) bool { return strings.HasPrefix(name, "FLANNEL-") },
	Comment: func(text string) bool { return strings.HasPrefix(text, "flanneld ") },
}

// setAside has the runtime no longer find flannel's network configuration.
func (n *Node) setAside() error {
	found, err := filepath.Glob(filepath.Join(n.confDir, "*flannel*.conflist"))
	if err != nil {
		return err
	}
	for _, path := range found {
		if err := os.Rename(path, path+fromcalico.Aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set flannel's network configuration aside: %w", err)
		}
	}
	return nil
}

// removeTunnels removes flannel's devices of VXLAN, with the routes that lead there.
func removeTunnels() error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); !ok || v.Name != fmt.Sprintf("flannel.%d", v.VxlanId) {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
			return fmt.Errorf("remove flannel's device %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// read reads what nodes say of flannel.
func (n *Node) read(ctx context.Context) error {
	list, err := n.api.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("look for the MAC addresses of flannel's tunnels: %w", err)
	}
	out := map[string]*corev1.Node{}
	for i := range list.Items {
		node := &corev1.Node{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, node); err != nil {
			return fmt.Errorf("read node %s: %w", list.Items[i].GetName(), err)
		}
		out[node.Name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations}}
	}
	n.nodes.Store(&out)
	return nil
}

// MAC is the address at which a node takes frames of the tunnel.
func (n *Node) MAC(node string) ([6]byte, error) {
	all := n.nodes.Load()
	if all == nil {
		return [6]byte{}, errors.New("the nodes were not read yet")
	}
	of := (*all)[node]
	if of == nil {
		return [6]byte{}, fmt.Errorf("node %s was not read yet", node)
	}
	mac, err := flannel.VTEP(of)
	if err != nil && of.Labels[deploy.NetworkLabel] == deploy.NetworkWeir {
		return anyMAC, nil
	}
	if err != nil {
		return mac, fmt.Errorf("node %s: %w", node, err)
	}
	return mac, nil
}

// Run follows what nodes say of flannel, and removes its bridge when no pod is attached any more.
func (n *Node) Run(ctx context.Context) error {
	if n == nil {
		return nil
	}
	for bridged := true; sleep.For(ctx, every) == nil; {
		if err := n.read(ctx); err != nil {
			n.log.Warn("new nodes with flannel are not reached", "error", err)
		}
		if !bridged {
			continue
		}
		var err error
		if bridged, err = removeBridge(); err != nil {
			n.log.Warn("flannel's bridge stays", "error", err)
		}
	}
	return nil
}

// removeBridge reports whether flannel's bridge is still there.
func removeBridge() (there bool, err error) {
	l, err := netlink.LinkByName(bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("look at device %s: %w", bridge, err)
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return true, fmt.Errorf("list interfaces: %w", err)
	}
	if slices.ContainsFunc(links, func(port netlink.Link) bool { return port.Attrs().MasterIndex == l.Attrs().Index }) {
		return true, nil
	}
	if err := netlink.LinkDel(l); err != nil {
		return true, fmt.Errorf("remove device %s: %w", bridge, err)
	}
	return false, nil
}
