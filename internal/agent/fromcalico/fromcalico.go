// SPDX-License-Identifier: Apache-2.0

// Package fromcalico takes a node over from Calico while its pods run: whether Felix is gone, which
// pods Calico's CNI plugin has started, its network configuration set aside, and, when the data
// plane of Weir is in force, what Felix left in the kernel (package remains) removed. What is in
// force until then is what Felix wrote last, so that no pod is without policy. See
// docs/design/migration.md.
package fromcalico

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/agent/fromcalico/remains"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/migrate/calico"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
)

// Environment is the variable that has an agent take its node over: Plugin is its value.
const (
	Environment = "WEIR_TAKE_OVER"
	Plugin      = "calico"
)

// Annotations that Calico's CNI plugin writes.
const (
	annotationContainer = "cni.projectcalico.org/containerID"
	annotationAddrs     = "cni.projectcalico.org/podIPs"
)

const (
	nodeDaemon = "calico-node" // label k8s-app of Felix's pods
	// InterfacePrefix is that of Calico's interfaces of pods, and of Weir's.
	InterfacePrefix = "cali"
	podProtocol     = 3 // of Felix's routes to pods (deviceRouteProtocol) and of Weir's
	// Aside ends the name of a network configuration that is not in force: runtimes read .conf,
	// .conflist and .json.
	Aside = ".before-weir"
)

// Node is a node that is taken over. A nil Node is one that is not.
type Node struct {
	name    string
	confDir string // where the container runtime looks for network configurations
	api     dynamic.Interface
	log     *slog.Logger

	routed atomic.Bool // BIRD had the routes
	done   atomic.Bool
}

// Open returns the node if the environment of its agent says that it is taken over, else nil.
func Open(environ []string, node, confDir string, api dynamic.Interface, log *slog.Logger) *Node {
	if !slices.Contains(environ, Environment+"="+Plugin) {
		return nil
	}
	return &Node{name: node, confDir: confDir, api: api, log: log}
}

// Begin makes the pods that run on the node those of Weir's CNI plugin. It is called before the
// endpoints of the node are restored, and before anything is written that Felix would write
// otherwise.
func (n *Node) Begin(ctx context.Context, s *cni.Server) error {
	if n == nil {
		return nil
	}
	pods, err := n.pods(ctx)
	if err != nil {
		return err
	}
	// From here on the runtime starts no pod. One that is being started now has no policy of
	// Felix's either, so nothing passes it; the next start of the agent finds it.
	if err := n.setAside(); err != nil {
		return err
	}
	adopted, err := s.Adopt(InterfacePrefix, podProtocol, pods)
	n.log.Info("took pods over from Calico", "pods", adopted, "error", err)
	if err != nil {
		return fmt.Errorf("take the pods of Calico over: %w", err)
	}
	if err := n.takeIPIP(ctx); err != nil {
		return err
	}
	if err := n.adoptRoutes(ctx); err != nil {
		return err
	}
	return remains.RemoveVXLAN()
}

// takeIPIP takes IP in IP over where Calico uses it.
func (n *Node) takeIPIP(ctx context.Context) error {
	u, err := n.api.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look at this node: %w", err)
	}
	node := &corev1.Node{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, node); err != nil {
		return fmt.Errorf("read this node: %w", err)
	}
	return remains.TakeIPIP(calico.IPIPAddr(node))
}

// pods returns those that Calico's plugin has given an address. It is an error while Felix runs.
func (n *Node) pods(ctx context.Context) ([]cni.Foreign, error) {
	list, err := n.api.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		return nil, fmt.Errorf("look for the pods of this node: %w", err)
	}
	var out []cni.Foreign
	for i := range list.Items {
		p := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, p); err != nil {
			return nil, fmt.Errorf("read pod %s/%s: %w", list.Items[i].GetNamespace(), list.Items[i].GetName(), err)
		}
		if p.Labels["k8s-app"] == nodeDaemon && p.Spec.HostNetwork && p.Status.Phase == corev1.PodRunning {
			return nil, fmt.Errorf("pod %s/%s still runs on this node: Calico has to end first (weir migrate --from calico --apply does that)", p.Namespace, p.Name)
		}
		f, err := foreign(p)
		if err != nil {
			return nil, err
		}
		if f != nil {
			out = append(out, *f)
		}
	}
	return out, nil
}

// foreign reads what Calico's plugin wrote into a pod or the kubelet; nil = the pod has no address.
func foreign(p *corev1.Pod) (*cni.Foreign, error) {
	container, addrs := p.Annotations[annotationContainer], p.Annotations[annotationAddrs]
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	name := model.Name{Namespace: p.Namespace, Name: p.Name}
	if container == "" && addrs == "" && p.Status.PodIP != "" { // Weir has started it, and gave the node back since
		addrs = p.Status.PodIP + "/32"
	} else if container == "" || addrs == "" {
		return nil, nil
	}
	// Whoever may write a pod can write these: the container becomes part of an alias, and
	// addresses are compared with the kernel's routes.
	if raw, err := hex.DecodeString(container); container != "" && (err != nil || len(raw) != 32) {
		return nil, fmt.Errorf("pod %s, annotation %s: %q is not the name of a container", name, annotationContainer, container)
	}
	out := &cni.Foreign{Pod: name, UID: string(p.UID), ContainerID: container}
	for text := range strings.SplitSeq(addrs, ",") {
		a, err := netip.ParsePrefix(text)
		if err != nil || !a.IsSingleIP() || !a.Addr().Is4() {
			return nil, fmt.Errorf("pod %s, annotation %s: %q is not an IPv4 address with /32", name, annotationAddrs, text)
		}
		out.Addrs = append(out.Addrs, a.Addr())
	}
	return out, nil
}

// setAside has the runtime no longer find Calico's network configuration.
func (n *Node) setAside() error {
	found, err := filepath.Glob(filepath.Join(n.confDir, "*calico*.conflist"))
	if err != nil {
		return err
	}
	for _, path := range found {
		if err := os.Rename(path, path+Aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set Calico's network configuration aside: %w", err)
		}
	}
	return nil
}

// Run waits until ready says that the data plane is in force, and removes what Felix left.
func (n *Node) Run(ctx context.Context, ready func() error) error {
	if n == nil {
		return nil
	}
	for !n.done.Load() {
		if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
			return nil
		}
		if ready() != nil {
			continue
		}
		if err := n.finish(); err != nil {
			n.log.Error("part of what Felix left on this node stays; trying again", "error", err)
			_ = sleep.For(ctx, 2*time.Second)
		}
	}
	return nil
}

// Ready says what is missing until pods can be started: Felix's rules let nothing pass of pods that
// it does not know.
func (n *Node) Ready() error {
	if n != nil && !n.done.Load() {
		return errors.New("what Felix left on this node is being removed")
	}
	return nil
}

func (n *Node) finish() error {
	removed, err := remains.Remove(n.routed.Load())
	if removed.Chains > 0 {
		n.log.Info("removed what Felix had written", "rules", removed.Rules, "chains", removed.Chains)
	}
	if err != nil {
		return err
	}
	n.done.Store(true)
	return nil
}
