// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/apitest"
)

const (
	wantsPool  = "weir-pools"
	wantsBlock = "weir-blocks"
)

func poolOf(name, cidr string, size int64) *unstructured.Unstructured {
	spec := map[string]any{"cidr": cidr}
	if size != 0 {
		spec["blockSize"] = size
	}
	return object(v3API, "IPPool", "", name, spec)
}

func poolOfNobody(t *testing.T, c cluster) {
	for _, cidr := range []string{"0.0.0.0/0", "0.0.0.0/1", "0.1.0.0/16", "127.0.0.0/8", "127.0.0.64/26", "169.254.169.0/24", "169.0.0.0/8", "224.0.0.0/4", "240.0.0.0/8", "10.0.0.1/16", "10.0.0.0", "10.0.0/16",
		"::/0", "::/64", "::1/128", "fe80::/64", "ff02::/16", "fd00::1/64", "::ffff:10.0.0.0/112"} {
		c.refused(t, c.Clients.Dynamic, "create", poolOf("evil", cidr, 0), wantsPool)
	}
	for cidr, size := range map[string]int64{"10.0.0.0/16": 33, "10.0.0.0/8": 15, "10.0.0.0/24": 23, "10.0.0.0/12": -1, "fd00::/48": 129, "fd00::/64": 111, "fd00::/120": 119} {
		c.refused(t, c.Clients.Dynamic, "create", poolOf("evil", cidr, size), wantsPool)
	}
	for i, p := range []*unstructured.Unstructured{poolOf("fine", "10.77.0.0/16", 0), poolOf("fine", "10.77.0.0/28", 0), poolOf("fine", "10.77.0.1/32", 0), poolOf("fine", "10.77.0.0/16", 32),
		poolOf("fine", "10.77.0.0/16", 16), poolOf("fine", "fd77::/48", 0), poolOf("fine", "fd77::/48", 112), poolOf("fine", "fd77::/126", 0), poolOf("fine", "2001:db8:1::/64", 128)} {
		t.Log(i)
		c.taken(t, c.Clients.Dynamic, "create", p)
		c.taken(t, c.Clients.Dynamic, "delete", p)
	}
}

// poolOfNode: the pool is compared with what each Node says of its addresses.
func poolOfNode(t *testing.T, c cluster) {
	n2 := apitest.Object("v1", "Node", "n2", nil)
	n2.Object["status"] = map[string]any{"addresses": []any{
		map[string]any{"type": "Hostname", "address": "n2"}, map[string]any{"type": "InternalIP", "address": "172.31.77.2"},
		map[string]any{"type": "InternalIP", "address": "fd00:77::2"}, map[string]any{"type": "ExternalIP", "address": "203.0.113.77"}}}
	if err := c.try(c.Clients.Dynamic, "status", n2); err != nil {
		t.Fatal(err)
	}
	for cidr, covered := range map[string]string{"172.31.0.0/16": "172.31.77.2", "172.31.77.2/32": "172.31.77.2", "fd00:77::/64": "fd00:77::2", "203.0.113.0/24": "203.0.113.77"} {
		c.refusedSoon(t, c.Clients.Dynamic, poolOf("evil", cidr, 0), cidr+" covers "+covered+" of node n2")
		p := poolOf("evil", cidr, 0)
		p.Object["spec"].(map[string]any)["disabled"] = true
		c.refused(t, c.Clients.Dynamic, "create", p, "of node n2")
	}
	c.taken(t, c.Clients.Dynamic, "create", poolOf("fine", "172.31.78.0/24", 0))
	c.taken(t, c.Clients.Dynamic, "delete", poolOf("fine", "172.31.78.0/24", 0))
	c.refused(t, c.Clients.Dynamic, "create", poolOf("evil", "10.0.0.1/16", 0), wantsPool)
}

// kubeletAsksForAddress: what a pod asks for is said when it is made. Kubelets go on writing the
// status.
func kubeletAsksForAddress(t *testing.T, c cluster) {
	const kubelet, asks, mirror = "system:node:n1", "cni.projectcalico.org/ipAddrs", "kubernetes.io/config.mirror"
	c.grant(t, kubelet, "shop", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"patch"}})
	spec := map[string]any{"nodeName": "n1", "automountServiceAccountToken": false, "containers": []any{map[string]any{"name": "c", "image": "none"}}}
	plain, asking := object("v1", "Pod", "shop", "plain", spec), object("v1", "Pod", "shop", "asking", spec)
	asking.SetAnnotations(map[string]string{asks: `["10.244.77.1"]`})
	c.Create(object("v1", "ServiceAccount", "shop", "default", nil)) // no controller makes it here
	c.Create(plain)
	c.Create(asking)
	patch := func(pod, subresource string, annotations map[string]any) error {
		raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "status": map[string]any{"podIP": "10.244.77.1", "podIPs": []any{map[string]any{"ip": "10.244.77.1"}}}})
		if err != nil {
			return err
		}
		var at []string
		if subresource != "" {
			at = append(at, subresource)
		}
		_, err = c.as(kubelet, "").Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("shop").Patch(t.Context(), pod, types.MergePatchType, raw, metav1.PatchOptions{}, at...)
		return err
	}
	apitest.Eventually(t, 10*time.Second, "a kubelet's right to write the status", func() error { return patch("plain", "status", map[string]any{"seen": "yes"}) })
	for _, subresource := range []string{"", "status"} {
		for _, p := range []struct {
			pod         string
			annotations map[string]any
		}{{"plain", map[string]any{asks: `["10.244.77.1"]`}}, {"asking", map[string]any{asks: `["10.244.77.2"]`}}, {"asking", map[string]any{asks: nil}}, {"plain", map[string]any{mirror: "x"}}} {
			err := patch(p.pod, subresource, p.annotations)
			if err == nil || !(apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) || p.annotations[mirror] == nil && !strings.Contains(err.Error(), "weir-kubelets-pods") {
				t.Errorf("%s %s %v: %v", p.pod, subresource, p.annotations, err)
			}
		}
	}
	if err := patch("asking", "status", map[string]any{"seen": "yes"}); err != nil {
		t.Errorf("the status of a pod that asks for an address: %v", err)
	}
}

// Blocks may be made larger, never smaller: those that nodes have would be larger than a block of
// the pool.
func smallerBlocks(t *testing.T, c cluster) {
	c.Create(poolOf("grown", "10.78.0.0/16", 0)) // 26
	c.refused(t, c.Clients.Dynamic, "update", poolOf("grown", "10.78.0.0/16", 27), "spec.blockSize: nodes have blocks of /26")
	c.taken(t, c.Clients.Dynamic, "update", poolOf("grown", "10.78.0.0/16", 26))
	c.taken(t, c.Clients.Dynamic, "update", poolOf("grown", "10.78.0.0/16", 24))
	c.refused(t, c.Clients.Dynamic, "update", poolOf("grown", "10.78.0.0/16", 0), "spec.blockSize")
	c.taken(t, c.Clients.Dynamic, "delete", poolOf("grown", "10.78.0.0/16", 0))
}

func blockNamedAsOther(t *testing.T, c cluster) {
	c.pool(t)
	n1 := c.as(agentUser, "n1")
	for _, b := range []struct{ cidr, name string }{
		{"10.244.80.0/26", "10-244-80-64-26"}, {"10.244.80.0/26", "10-244-80-0-27"}, {"10.244.80.0/26", "x"}, {"10.244.80.0/26", "10.244.80.0-26"}, {"10.244.80.0/26", "010-244-80-0-26"},
		{"fd00:80::/122", "fd00-0080--122"}, {"fd00:80::/122", "fd00-0081-0000-0000-0000-0000-0000-0000-122"},
	} {
		c.refusedSoon(t, n1, blockOf("n1", b.cidr, b.name), wantsBlock)
	}
	for _, b := range []*unstructured.Unstructured{blockOf("n1", "10.244.80.0/26", "10-244-80-0-26"), blockOf("n1", "fd00:80::/122", "fd00-0080-0000-0000-0000-0000-0000-0000-122")} {
		c.taken(t, n1, "create", b)
		c.taken(t, n1, "delete", b)
	}
}

func blockLargerThanPools(t *testing.T, c cluster) {
	c.pool(t)
	n1 := c.as(agentUser, "n1")
	c.refusedSoon(t, n1, blockOf("n1", "10.244.80.0/25", "10-244-80-0-25"), wantsBlock)
	c.refusedSoon(t, n1, blockOf("n1", "10.244.0.0/16", "10-244-0-0-16"), wantsBlock)
	c.Create(poolOf("tiny", "10.79.0.0/30", 0))
	c.refusedSoon(t, n1, blockOf("n1", "10.79.0.0/26", "10-79-0-0-26"), wantsBlock) // around the pool
	c.taken(t, c.Clients.Dynamic, "delete", poolOf("tiny", "10.79.0.0/30", 0))
}

func blockNoNetwork(t *testing.T, c cluster) {
	c.pool(t)
	n1 := c.as(agentUser, "n1")
	for _, cidr := range []string{"10.244.80.5/26", "10.244.80.0", "10.244.80.0/33", "10.0.0.0/8", "0.0.0.0/0", "fd00:80::5/122", "fd00:80::/111", "fd00:80::/48"} {
		name := strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(strings.Replace(cidr, "::", ":0000:0000:0000:0000:0000:0000:", 1))
		c.refusedSoon(t, n1, blockOf("n1", cidr, name), wantsBlock)
	}
}
