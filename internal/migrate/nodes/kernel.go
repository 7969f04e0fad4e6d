// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/deploy"
)

// askPod is the name of the pod that asks a node's kernel.
const askPod = "weir-asks-"

// kernelHasIPIP is an error where a node's kernel has no device of IP in IP. No agent runs on the
// node yet that could say so, and Calico goes on there if it lacks one.
func (c *Change) kernelHasIPIP(ctx context.Context, node string) error {
	image, err := c.image(ctx, "calico")
	if err != nil {
		return err
	}
	yes, no := true, false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: askPod + node, Namespace: deploy.Namespace},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, DNSPolicy: corev1.DNSDefault, PriorityClassName: "system-node-critical", AutomountServiceAccountToken: &no,
			RestartPolicy: corev1.RestartPolicyNever, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			// It asks in a network namespace that it makes.
			Containers: []corev1.Container{{Name: "ask", Image: image, Command: []string{"/weir-agent", "probe", "--ipip"}, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "SYS_ADMIN"}}}}}}}
	api := c.Clients.Kube.CoreV1().Pods(deploy.Namespace)
	remove := func() error {
		if err := api.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove pod %s: %w", pod.Name, err)
		}
		return nil
	}
	// One that a command before this one left is of no use: it may have asked another kernel.
	if err := remove(); err != nil {
		return err
	}
	if err := c.await(ctx, node+": its kernel is asked", func(ctx context.Context) error {
		_, err := api.Create(ctx, pod, metav1.CreateOptions{FieldManager: Manager})
		return err
	}); err != nil {
		return err
	}
	var says *corev1.Pod
	if err := c.await(ctx, node+": its kernel has answered", func(ctx context.Context) error {
		p, err := api.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("pod %s is %s", p.Name, p.Status.Phase)
		}
		says = p
		return err
	}); err != nil {
		return err
	}
	if err := remove(); err != nil {
		return err
	}
	if says.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	why := "pod " + pod.Name + " has failed: " + says.Status.Reason
	for _, s := range says.Status.ContainerStatuses {
		if s.State.Terminated != nil && s.State.Terminated.Message != "" {
			why = strings.TrimSpace(s.State.Terminated.Message)
		}
	}
	return fmt.Errorf("node %s cannot take IP in IP with Weir, and stays as it is: %s; load the module, or set vxlanMode in the place of ipipMode before (docs/guides/migrate-from-calico.md#vxlan-in-the-place-of-ip-in-ip)", node, why)
}
