// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/peerauth"
)

type fixture struct {
	*Controller
	t       *testing.T
	kube    *kubefake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	clock   time.Time
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	peers := metav1.ObjectMeta{Namespace: "kube-system", Name: peerauth.ObjectName}
	objects = append(slices.Clip(objects), &corev1.Secret{ObjectMeta: peers}, &corev1.ConfigMap{ObjectMeta: peers},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "0b7d0f0e-3f7f-4a5c-9a55-0c3b1a2d4e5f"}})
	f := &fixture{t: t, kube: kubefake.NewClientset(objects...), clock: time.Unix(1e9, 0)}
	kinds := map[schema.GroupVersionResource]string{
		ipamv3.IPAMBlocks: "IPAMBlockList", ipamv3.IPAMHandles: "IPAMHandleList", ipamv3.BlockAffinities: "BlockAffinityList",
		poolResource: "IPPoolList", felixResource: "FelixConfigurationList", weirv1.IPAMBlocks: "IPAMBlockList", weirv1.NodeStatuses: "NodeStatusList",
		policyResources[0]: "ClusterNetworkPolicyList", policyResources[1]: "AdminNetworkPolicyList", policyResources[2]: "BaselineAdminNetworkPolicyList",
		hostEndpointResource: "HostEndpointList", tierResource: "TierList", reservationResource: "IPReservationList", controllersResource: "KubeControllersConfigurationList",
	}
	for _, name := range slices.Concat(few, many, []string{"clusterinformations", "ipamconfigurations"}) {
		if r := v3.SchemeGroupVersion.WithResource(name); kinds[r] == "" {
			kinds[r] = name + "List"
		}
	}
	f.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	f.Controller = New(Config{Kube: f.kube, Dynamic: f.dynamic, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Namespace: "kube-system", PodCIDR: "10.244.0.0/16", VXLANMode: "Never", Grace: time.Minute, Interval: time.Second})
	f.now = func() time.Time { return f.clock }
	return f
}

func (f *fixture) block(cidr, node string) {
	f.t.Helper()
	p := netip.MustParsePrefix(cidr)
	_, err := f.blocks.Create(f.t.Context(), &weirv1.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: weirv1.BlockName(p)}, Spec: weirv1.IPAMBlockSpec{CIDR: cidr, Node: node}})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) have() string {
	f.t.Helper()
	list, err := f.blocks.List(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, b := range list {
		names = append(names, b.Spec.CIDR)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

func (f *fixture) after(d time.Duration) error {
	f.clock = f.clock.Add(d)
	return f.Reconcile(f.t.Context())
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func podWith(addr, on string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-" + strings.ReplaceAll(addr, ".", "-")},
		Spec: corev1.PodSpec{NodeName: on}, Status: corev1.PodStatus{Phase: phase, PodIPs: []corev1.PodIP{{IP: addr}}}}
}

func TestBlocksOfNodesThatAreGone(t *testing.T) {
	f := newFixture(t, node("n1"), podWith("10.244.1.70", "gone", corev1.PodRunning), podWith("10.244.1.5", "gone", corev1.PodSucceeded))
	f.block("10.244.0.0/26", "n1")
	f.block("10.244.1.0/26", "gone")
	f.block("10.244.1.64/26", "gone")
	if err := f.after(0); err != nil {
		t.Fatal(err)
	}
	if err := f.after(59 * time.Second); err != nil || f.have() != "10.244.0.0/26 10.244.1.0/26 10.244.1.64/26" {
		t.Errorf("within the grace period: %s %v", f.have(), err)
	}
	if err := f.after(2 * time.Second); err != nil || f.have() != "10.244.0.0/26 10.244.1.64/26" {
		t.Errorf("after it, a pod has an address in one of them: %s %v", f.have(), err)
	}
	if err := f.kube.CoreV1().Pods("ns").Delete(t.Context(), "p-10-244-1-70", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.after(time.Second); err != nil || f.have() != "10.244.0.0/26" {
		t.Errorf("after the pod is gone: %s %v", f.have(), err)
	}
}

func TestNodeThatComesBackKeepsItsBlocks(t *testing.T) {
	f := newFixture(t)
	f.block("10.244.0.0/26", "n1")
	if err := f.after(0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.kube.CoreV1().Nodes().Create(t.Context(), node("n1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.after(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := f.kube.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.after(31 * time.Second); err != nil || f.have() == "" {
		t.Errorf("the grace period did not begin anew: %v", err)
	}
	// A list from memory may lack a node that storage has: nothing is removed then.
	stale := newFixture(t, node("n1"))
	stale.block("10.244.0.0/26", "n1")
	stale.kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.NodeList{}, nil
	})
	for range 3 {
		if err := stale.after(2 * time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if stale.have() == "" {
		t.Error("a stale list of nodes cost a node its block")
	}
}

// Nothing is removed when a question cannot be answered.
func TestNothingIsRemovedInDoubt(t *testing.T) {
	for _, resource := range []string{"pods", "nodes"} {
		f := newFixture(t)
		f.block("10.244.0.0/26", "gone")
		if err := f.after(0); err != nil {
			t.Fatal(err)
		}
		f.kube.PrependReactor("*", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("away")
		})
		if err := f.after(2 * time.Minute); err == nil || f.have() == "" {
			t.Errorf("%s cannot be read: err %v, blocks %q", resource, err, f.have())
		}
	}
}

func TestDefaultsAreMadeOnce(t *testing.T) {
	f := newFixture(t)
	pools := f.dynamic.Resource(poolResource)
	if err := f.after(0); err != nil {
		t.Fatal(err)
	}
	p, err := pools.Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cidr, _, _ := unstructured.NestedString(p.Object, "spec", "cidr"); cidr != "10.244.0.0/16" {
		t.Errorf("pool %v", p.Object)
	}
	if err := pools.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.after(time.Second); err != nil {
		t.Fatal(err)
	}
	if list, err := pools.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("a pool that was removed came back: %v %v", list.Items, err)
	}
}

// Of two families each has its pool; what an attempt left that ended between them is completed, and
// nothing is added to pools that somebody made.
func TestDefaultPoolsOfTwoFamilies(t *testing.T) {
	for what, tt := range map[string]struct {
		there map[string]string
		want  string
	}{
		"none":      {nil, "default-ipv6=fd00:10:244::/56 default=10.244.0.0/16"},
		"the first": {map[string]string{"default": "10.244.0.0/16"}, "default-ipv6=fd00:10:244::/56 default=10.244.0.0/16"},
		"another":   {map[string]string{"mine": "10.1.0.0/16"}, "mine=10.1.0.0/16"},
		"changed":   {map[string]string{"default": "10.2.0.0/16"}, "default=10.2.0.0/16"},
	} {
		f := newFixture(t)
		f.cfg.PodCIDR = "10.244.0.0/16,fd00:10:244::/56"
		pools := f.dynamic.Resource(poolResource)
		for name, cidr := range tt.there {
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
				"metadata": map[string]any{"name": name}, "spec": map[string]any{"cidr": cidr}}}
			if _, err := pools.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := f.after(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		list, err := pools.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range list.Items {
			got = append(got, list.Items[i].GetName()+"="+cidrOf(&list.Items[i]))
		}
		sort.Strings(got)
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", what, text, tt.want)
		}
	}
}

func TestOverlapIsReportedOnce(t *testing.T) {
	f := newFixture(t)
	for i, cidr := range []string{"10.0.0.0/16", "10.0.128.0/17", "10.1.0.0/16"} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "spec": map[string]any{"cidr": cidr},
			"metadata": map[string]any{"name": string(rune('c' - i)), "uid": cidr, "creationTimestamp": time.Unix(int64(i), 0).UTC().Format(time.RFC3339)}}}
		if _, err := f.dynamic.Resource(poolResource).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := f.after(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	events, err := f.kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].InvolvedObject.Name != "b" || !strings.Contains(events.Items[0].Message, "IPPool c") {
		t.Errorf("%v %v", events.Items, err)
	}
	off := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": map[string]any{"name": "off"}, "spec": map[string]any{"cidr": "10.2.0.0/16", "disabled": true}}}
	if _, err := f.dynamic.Resource(poolResource).Create(t.Context(), off, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f.dynamic.ClearActions()
		if err := f.after(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range f.dynamic.Actions() {
		if a.GetSubresource() == "status" && a.GetResource() == poolResource {
			t.Error("a status that did not change is written again")
		}
	}
	for name, reason := range map[string]string{"a": reasonAllocatable, "b": reasonOverlap, "c": reasonAllocatable, "off": reasonDisabled} {
		u, err := f.dynamic.Resource(poolResource).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := conditionsOf(u)
		if err != nil || len(got) != 1 || got[0].Type != "Allocatable" || got[0].Reason != reason || (got[0].Status == metav1.ConditionTrue) != (reason == reasonAllocatable) {
			t.Errorf("pool %s: %+v %v, want %s", name, got, err, reason)
		}
	}
}

func TestHealth(t *testing.T) {
	f := newFixture(t)
	if f.Healthy() != nil {
		t.Error("a follower is not healthy")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.lead(ctx)
	if f.Healthy() != nil || f.alive.Load() != 0 {
		t.Error("leads on after its end")
	}
	f.alive.Store(f.clock.Unix())
	f.clock = f.clock.Add(2 * time.Minute)
	if f.Healthy() == nil {
		t.Error("a leader that hangs is healthy")
	}
}
