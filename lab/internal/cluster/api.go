// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const poll = 200 * time.Millisecond

// connect makes a client whose sockets are in the control-plane node's network
// namespace, because nothing outside the lab has a route to the API server.
func connect(lab string) (*kubernetes.Clientset, error) {
	raw, err := os.ReadFile(KubeconfigPath(lab))
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of lab %s: %w", lab, err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of lab %s: %w", lab, err)
	}
	path := network.Path(plan.Scoped(lab, plan.ControlPlane))
	// Addresses in a lab's kubeconfig are numbers, so dialing opens its one socket
	// on the thread that entered the namespace.
	c.Dial = func(ctx context.Context, proto, addr string) (net.Conn, error) {
		var conn net.Conn
		err := network.Within(path, func() error {
			var err error
			conn, err = (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, proto, addr)
			return err
		})
		return conn, err
	}
	c.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	c.QPS, c.Burst, c.Timeout = 50, 100, 30*time.Second
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make a client of lab %s: %w", lab, err)
	}
	return client, nil
}

// errGone says that something ended that is needed: waiting on makes no sense.
var errGone = errors.New("ended")

// until polls f until it returns nil or errGone, or time is up. What f last said is
// part of the error.
func until(ctx context.Context, what string, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not within %s", timeout))
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, errGone) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; last seen: %v", what, context.Cause(ctx), last)
		case <-time.After(poll):
		}
	}
}

func nodeReady(n *corev1.Node) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "no condition yet"
}

// register waits for each node to appear and completes it: the control plane's
// label, which a kubelet may not give itself, and the pod network where the lab
// routes pods.
func register(ctx context.Context, c *kubernetes.Clientset, l *plan.Lab, routePods bool, timeout time.Duration) error {
	for _, m := range l.Nodes() {
		err := until(ctx, "node "+m.Name+" registers", timeout, func(ctx context.Context) error {
			_, err := c.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
			return err
		})
		if err != nil {
			return err
		}
		patch := map[string]any{}
		if m.Role == plan.RoleControlPlane {
			patch["metadata"] = map[string]any{"labels": map[string]string{"node-role.kubernetes.io/control-plane": ""}}
		}
		if routePods {
			patch["spec"] = map[string]any{"podCIDR": m.PodCIDRs()[0], "podCIDRs": m.PodCIDRs()}
		}
		if len(patch) == 0 {
			continue
		}
		raw, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("encode the patch of node %s: %w", m.Name, err)
		}
		if _, err := c.CoreV1().Nodes().Patch(ctx, m.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("complete node %s: %w", m.Name, err)
		}
	}
	return nil
}

func awaitReady(ctx context.Context, c *kubernetes.Clientset, l *plan.Lab, timeout time.Duration) error {
	return until(ctx, "all nodes Ready", timeout, func(ctx context.Context) error {
		for _, m := range l.Nodes() {
			n, err := c.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ok, why := nodeReady(n); !ok {
				return fmt.Errorf("%s: %s", m.Name, why)
			}
		}
		return nil
	})
}

func awaitDNS(ctx context.Context, c *kubernetes.Clientset, timeout time.Duration) error {
	return until(ctx, "CoreDNS available", timeout, func(ctx context.Context) error {
		d, err := c.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		if err != nil {
			return err
		}
		st := d.Status
		ok := st.ObservedGeneration >= d.Generation && st.UpdatedReplicas == *d.Spec.Replicas && st.AvailableReplicas == *d.Spec.Replicas
		if !ok {
			return fmt.Errorf("%d of %d replicas available", st.AvailableReplicas, *d.Spec.Replicas)
		}
		return nil
	})
}
