// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/apitest"
)

// keepAddresses says whether virtual machines keep their addresses.
func (c cluster) keepAddresses(t *testing.T, setting string) {
	t.Helper()
	u := object(v3API, "IPAMConfiguration", "", "default", map[string]any{"strictAffinity": true, "kubeVirtVMAddressPersistence": setting})
	if err := c.try(c.Clients.Dynamic, "create", u); err != nil {
		c.taken(t, c.Clients.Dynamic, "update", u)
	}
}

// machineBlock is the address of a virtual machine that is at node; target is the node that it is
// moved to, if any.
func machineBlock(node, target string) *unstructured.Unstructured {
	u := blockOf(node, "10.244.90.7/32", "10-244-90-7-32")
	vm := map[string]any{"name": "shop/a", "uid": "vm", "pod": "one"}
	if target != "" {
		vm["target"] = map[string]any{"node": target, "pod": "two"}
	}
	u.Object["spec"].(map[string]any)["virtualMachine"] = vm
	return u
}

// The controller alone says where a machine is; the target of a migration may take its address.
func machineOfOther(t *testing.T, c cluster) {
	c.pool(t)
	c.Create(machineBlock("n1", ""))
	n1, n2 := c.as(agentUser, "n1"), c.as(agentUser, "n2")
	c.refused(t, n2, "update", machineBlock("n2", ""), wantsNode)
	c.refused(t, n2, "update", machineBlock("n2", "n2"), wantsNode)
	c.refused(t, n1, "delete", machineBlock("n1", ""), wantsNode)
	other := machineBlock("n1", "")
	other.SetName("10-244-90-8-32")
	other.Object["spec"].(map[string]any)["cidr"] = "10.244.90.8/32"
	c.refused(t, n1, "create", other, wantsNode)
	c.taken(t, c.Clients.Dynamic, "update", machineBlock("n1", "n2"))
	c.refused(t, n1, "update", machineBlock("n1", ""), wantsNode)
	c.refused(t, c.as(agentUser, "n3"), "update", machineBlock("n3", "n2"), wantsNode)
	plain := blockOf("n2", "10.244.90.7/32", "10-244-90-7-32")
	c.refused(t, n2, "update", plain, "")
	c.taken(t, n2, "update", machineBlock("n2", "n2"))
	c.refused(t, n1, "update", machineBlock("n1", "n2"), wantsNode)
	c.taken(t, c.Clients.Dynamic, "delete", machineBlock("n2", "n2"))
}

func controllerMachines(t *testing.T, c cluster) {
	c.pool(t)
	own := c.as(controllerUser, "")
	c.keepAddresses(t, "Disabled")
	defer c.keepAddresses(t, "Disabled")
	c.refusedSoon(t, own, machineBlock("n1", ""), "weir-controller-machines")
	c.keepAddresses(t, "Enabled")
	apitest.Eventually(t, time.Minute, "the setting", func() error { return c.try(own, "create", machineBlock("n1", "")) })
	c.taken(t, own, "update", machineBlock("n1", "n2"))
	c.refused(t, own, "update", blockOf("n2", "10.244.90.7/32", "10-244-90-7-32"), "")
	wide := machineBlock("n1", "")
	wide.SetName("10-244-90-8-31")
	wide.Object["spec"].(map[string]any)["cidr"] = "10.244.90.8/31"
	c.refused(t, own, "create", wide, byPolicy)
	c.taken(t, own, "delete", machineBlock("n1", "n2"))
}

// Who may make pods in a namespace, and reads its machines, makes none of a machine's pods.
func podOfMachine(t *testing.T, c cluster) {
	c.Create(object("v1", "Namespace", "", "machines", nil))
	c.Create(object("v1", "ServiceAccount", "machines", "default", nil)) // no controller makes it here
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"*"}}
	c.grant(t, "dev2", "machines", pods, rbacv1.PolicyRule{APIGroups: []string{"kubevirt.io"}, Resources: []string{"virtualmachineinstances"}, Verbs: []string{"*"}})
	c.grant(t, "virt", "machines", pods, rbacv1.PolicyRule{APIGroups: []string{"kubevirt.io"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	yes := true
	pod := func(name, migration string, owned bool) *unstructured.Unstructured {
		u := object("v1", "Pod", "machines", name, map[string]any{"automountServiceAccountToken": false, "containers": []any{map[string]any{"name": "c", "image": "none"}}})
		if owned {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "a", UID: "vmi", Controller: &yes}})
		}
		if migration != "" {
			u.SetLabels(map[string]string{"kubevirt.io/migrationJobUID": migration})
		}
		return u
	}
	dev, virt := c.as("dev2", ""), c.as("virt", "")
	apitest.Eventually(t, 10*time.Second, "the right to make pods", func() error { return c.try(dev, "create", pod("plain", "", false)) })
	c.refusedSoon(t, dev, pod("thief", "", true), "weir-machine-pods")
	c.refused(t, dev, "patch", pod("plain", "", true), "weir-machine-pods")
	apitest.Eventually(t, 10*time.Second, "KubeVirt's right to make pods", func() error { return c.try(virt, "create", pod("launcher", "", true)) })
	c.refused(t, dev, "patch", pod("launcher", "m", true), "weir-machine-pods")
	c.taken(t, virt, "patch", pod("launcher", "m", true))
}
