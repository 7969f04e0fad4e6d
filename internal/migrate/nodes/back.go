// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/migrate/calico"
)

// cleanPod is the name of the pod that removes what Weir left on a node.
const cleanPod = "weir-leaves-"

// Back takes a node back to Calico.
func (c *Change) Back(ctx context.Context, name string) error {
	n, err := c.node(ctx, name)
	if err != nil {
		return err
	}
	before, err := c.pods(ctx, name)
	if err != nil {
		return err
	}
	image, err := c.image(ctx, "calico")
	if err != nil {
		return err
	}
	c.say("%s: %d pods; the agent of Weir ends", name, len(before))
	if err := c.endWeir(ctx, name); err != nil {
		return err
	}
	if err := c.giveBack(ctx, n); err != nil {
		return err
	}
	if err := c.label(ctx, name, ""); err != nil {
		return err
	}
	c.say("%s: Calico begins", name)
	if err := c.await(ctx, name+": pod calico-node is ready", func(ctx context.Context) error {
		return c.ready(ctx, c.Cluster.Daemon.Namespace, "k8s-app="+calico.NodeDaemon, name)
	}); err != nil {
		return err
	}
	if err := c.clean(ctx, name, image, "--keep-pods"); err != nil {
		return err
	}
	if err := c.unchanged(ctx, name, before); err != nil {
		return err
	}
	c.say("%s: has Calico; %d pods run on as they were", name, len(before))
	return nil
}

// image is that of the agents. It is an error where these run on all nodes, whatever label they
// have.
func (c *Change) image(ctx context.Context, from string) (string, error) {
	ds, err := c.Clients.Kube.AppsV1().DaemonSets(deploy.Namespace).Get(ctx, "weir-node", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("look for DaemonSet weir-node: %w", err)
	}
	if ds.Spec.Template.Spec.NodeSelector[deploy.NetworkLabel] == "" {
		return "", fmt.Errorf("weir was installed on all nodes: weir install --from %s first, which lets nodes have %s", from, from)
	}
	return ds.Spec.Template.Spec.Containers[0].Image, nil
}

// giveBack makes a node's blocks Calico's alone, with the addresses of the pods that run there.
func (c *Change) giveBack(ctx context.Context, n *corev1.Node) error {
	name := n.Name
	list, err := c.Clients.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	if err != nil {
		return fmt.Errorf("look for the pods of node %s: %w", name, err)
	}
	pods := map[netip.Addr]calico.Allocation{}
	for i := range list.Items {
		p := &list.Items[i]
		a, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		container := p.Annotations["cni.projectcalico.org/containerID"]
		if container == "" {
			container = string(p.UID) // of Weir: calico-kube-controllers releases the address when the pod is gone
		}
		pods[a] = calico.Allocation{Handle: "k8s-pod-network." + container, Node: name, Namespace: p.Namespace, Pod: p.Name}
	}
	blocks, err := c.blocks(ctx, name)
	if err != nil {
		return err
	}
	for _, u := range blocks {
		b, _, err := calico.ReadBlock(u)
		if err != nil {
			return err
		}
		for a, p := range pods {
			if !b.CIDR.Contains(a) {
				continue
			}
			_, err := c.Clients.Dynamic.Resource(calico.IPAMHandles).Create(ctx, handle(p.Handle, b.CIDR), metav1.CreateOptions{FieldManager: Manager})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("make the IPAMHandle of pod %s/%s: %w", p.Namespace, p.Pod, err)
			}
		}
		if err := c.rewrite(ctx, u.GetName(), func(u *unstructured.Unstructured) error { return calico.Unseal(u, pods) }); err != nil {
			return err
		}
	}
	own := ipam.NewAPIBlocks(c.Clients.Dynamic, name)
	all, err := own.List(ctx)
	if err != nil {
		return fmt.Errorf("read the blocks of node %s: %w", name, err)
	}
	for _, b := range all {
		if b.Node == name && !b.CIDR.IsSingleIP() {
			if err := own.Release(ctx, b.CIDR); err != nil {
				return fmt.Errorf("give block %s back: %w", b.CIDR, err)
			}
		}
	}
	return c.makeTunnelBlocks(ctx, n)
}

// handle is the IPAMHandle by which Calico finds the addresses of a pod.
func handle(name string, block netip.Prefix) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": calico.Group + "/v1", "kind": "IPAMHandle",
		"metadata": map[string]any{"name": strings.ToLower(name)},
		"spec":     map[string]any{"handleID": name, "block": map[string]any{block.String(): int64(1)}, "deleted": false}}}
}

// clean removes what Weir left on a node; with --keep-pods among args but the interfaces of pods,
// which another plugin has in force by now.
func (c *Change) clean(ctx context.Context, node, image string, args ...string) error {
	yes, no, both, folder := true, false, corev1.MountPropagationBidirectional, corev1.HostPathDirectoryOrCreate
	container := corev1.Container{Name: "clean-up", Image: image, Command: append([]string{"/weir-agent", "clean-up"}, args...),
		SecurityContext: &corev1.SecurityContext{Privileged: &yes, ReadOnlyRootFilesystem: &yes}}
	spec := corev1.PodSpec{NodeName: node, HostNetwork: true, DNSPolicy: corev1.DNSDefault, PriorityClassName: "system-node-critical", AutomountServiceAccountToken: &no,
		RestartPolicy: corev1.RestartPolicyOnFailure, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
	for _, v := range [][2]string{{"bpffs", "/sys/fs/bpf"}, {"cgroup", "/sys/fs/cgroup"}, {"run", "/run/weir"}, {"state", "/var/lib/weir"}, {"cni-conf", "/etc/cni/net.d"}, {"cni-bin", "/opt/cni/bin"}} {
		m := corev1.VolumeMount{Name: v[0], MountPath: v[1]}
		if v[0] == "bpffs" {
			m.MountPropagation = &both
		}
		container.VolumeMounts = append(container.VolumeMounts, m)
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: v[0], VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v[1], Type: &folder}}})
	}
	spec.Containers = []corev1.Container{container}
	api := c.Clients.Kube.CoreV1().Pods(deploy.Namespace)
	_, err := api.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: cleanPod + node, Namespace: deploy.Namespace}, Spec: spec}, metav1.CreateOptions{FieldManager: Manager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("start the pod that removes what Weir left on node %s: %w", node, err)
	}
	err = c.await(ctx, node+": nothing of Weir is left", func(ctx context.Context) error {
		p, err := api.Get(ctx, cleanPod+node, metav1.GetOptions{})
		if err == nil && p.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
		}
		return err
	})
	if err != nil {
		return err
	}
	return api.Delete(ctx, cleanPod+node, metav1.DeleteOptions{})
}

// endWeir ends the agent of a node that is taken back.
func (c *Change) endWeir(ctx context.Context, name string) error {
	if err := c.label(ctx, name, deploy.NetworkChanging); err != nil {
		return err
	}
	return c.await(ctx, name+": pods weir-node and weir-bgp have ended", func(ctx context.Context) error {
		return errors.Join(c.gone(ctx, deploy.Namespace, weirNode, name), c.gone(ctx, deploy.Namespace, weirBGP, name))
	})
}
