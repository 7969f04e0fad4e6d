// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
)

type fixture struct {
	kube    *kubefake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	w       *Watcher
	batches chan *Batch
	entered atomic.Int32 // how often the sink was called
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{kube: kubefake.NewClientset(objects...), batches: make(chan *Batch)}
	kinds := map[schema.GroupVersionResource]string{}
	for resource, kind := range map[string]string{"ippools": "IPPool", "ipreservations": "IPReservation",
		"ipamconfigurations": "IPAMConfiguration", "felixconfigurations": "FelixConfiguration",
		"networkpolicies": "NetworkPolicy", "globalnetworkpolicies": "GlobalNetworkPolicy", "tiers": "Tier", "networksets": "NetworkSet", "hostendpoints": "HostEndpoint", "bgpconfigurations": "BGPConfiguration", "bgppeers": "BGPPeer", "bgpfilters": "BGPFilter", "egressgatewaypolicies": "EgressGatewayPolicy",
		"globalnetworksets": "GlobalNetworkSet", "stagednetworkpolicies": "StagedNetworkPolicy",
		"stagedglobalnetworkpolicies": "StagedGlobalNetworkPolicy", "stagedkubernetesnetworkpolicies": "StagedKubernetesNetworkPolicy"} {
		kinds[schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: resource}] = kind + "List"
	}
	for resource, kind := range map[string]string{"ipamblocks": "IPAMBlock", "nodestatuses": "NodeStatus"} {
		kinds[schema.GroupVersionResource{Group: "weir.dev", Version: "v1", Resource: resource}] = kind + "List"
	}
	kinds[schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"}] = "ServiceCIDRList"
	kinds[definitions] = "CustomResourceDefinitionList"
	var crds []runtime.Object
	for resource, kind := range map[string]string{"clusternetworkpolicies": "ClusterNetworkPolicy", "adminnetworkpolicies": "AdminNetworkPolicy",
		"baselineadminnetworkpolicies": "BaselineAdminNetworkPolicy"} {
		version := "v1alpha1"
		if kind == "ClusterNetworkPolicy" {
			version = "v1alpha2"
		}
		kinds[schema.GroupVersionResource{Group: groupPolicies, Version: version, Resource: resource}] = kind + "List"
		crds = append(crds, crd(resource+"."+groupPolicies))
	}
	f.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, crds...)
	var err error
	f.w, err = New(Config{Core: coreOf(f.kube), Dynamic: f.dynamic, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func crd(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name}}}
}

// coreOf reads from a clientset.
func coreOf(k kubernetes.Interface) client.Core {
	return client.Core{
		Namespaces: k.CoreV1().Namespaces(), Pods: k.CoreV1().Pods(metav1.NamespaceAll), Nodes: k.CoreV1().Nodes(),
		Services: k.CoreV1().Services(metav1.NamespaceAll), Slices: k.DiscoveryV1().EndpointSlices(metav1.NamespaceAll),
		Accounts: k.CoreV1().ServiceAccounts(metav1.NamespaceAll),
		Policies: k.NetworkingV1().NetworkPolicies(metav1.NamespaceAll),
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return k.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	}
}

// run starts the watcher; its sink blocks until the test takes the batch.
func (f *fixture) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- f.w.Run(ctx, func(ctx context.Context, b *Batch) {
			f.entered.Add(1)
			select {
			case f.batches <- b:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func (f *fixture) next(t *testing.T, what string) *Batch {
	t.Helper()
	select {
	case b := <-f.batches:
		return b
	case <-time.After(await.Patience):
		t.Fatalf("no batch: %s; %+v", what, f.w.Status())
		return nil
	}
}

// first takes the first batch, and waits until every resource is watched: what is created between a
// list and its watch the fake server never reports.
func (f *fixture) first(t *testing.T) *Batch {
	t.Helper()
	b := f.next(t, "first")
	f.watched(t)
	return b
}

func (f *fixture) watched(t *testing.T) {
	t.Helper()
	await.That(t, "watching every resource", func() error {
		n := 0
		for _, a := range slices.Concat(f.kube.Actions(), f.dynamic.Actions()) {
			if a.GetVerb() == "watch" {
				n++
			}
		}
		if n < len(f.w.sources) {
			return fmt.Errorf("%d of %d watches", n, len(f.w.sources))
		}
		return nil
	})
}

func (f *fixture) object(t *testing.T, gvr schema.GroupVersionResource, kind, name string, rest map[string]any) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}}}
	for k, v := range rest {
		u.Object[k] = v
	}
	if _, err := f.dynamic.Resource(gvr).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func pod(name, uid, ip string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid),
		Annotations: map[string]string{"cni.projectcalico.org/ipAddrs": "[]", "other": "x"}},
		Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}}}
}

func slice(ready bool) *discoveryv1.EndpointSlice {
	port := int32(80)
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
}

func TestFirstBatchIsWholeAndLaterOnesAreSquashed(t *testing.T) {
	f := newFixture(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}},
		pod("a", "1", "10.244.0.1"), pod("b", "2", "127.0.0.1"), slice(true),
	)
	f.object(t, schema.GroupVersionResource{Group: "weir.dev", Version: "v1", Resource: "nodestatuses"}, "NodeStatus", "n1",
		map[string]any{"status": map[string]any{"linkAddress": "02:00:5e:00:53:01"}})
	f.object(t, schema.GroupVersionResource{Group: "weir.dev", Version: "v1", Resource: "ipamblocks"}, "IPAMBlock", "10-244-0-0-26",
		map[string]any{"spec": map[string]any{"cidr": "10.244.0.0/26", "node": "n1"}})
	f.object(t, schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "ippools"}, "IPPool", "p",
		map[string]any{"spec": map[string]any{"cidr": "10.244.0.0/16"}})
	f.object(t, schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "felixconfigurations"}, "FelixConfiguration", "default",
		map[string]any{"spec": map[string]any{"vxlanPort": int64(4790)}})
	f.run(t)
	b := f.first(t)
	c := model.NewCluster()
	d := b.Apply(c)
	if !b.Full || !d.Has(model.KindNodes|model.KindPools) || c.Pods.Len() != 2 || len(c.Namespaces) != 1 || len(c.Slices) != 1 || len(c.Pools) != 1 || len(c.Blocks) != 1 {
		t.Errorf("first batch %+v", b)
	}
	if n := c.Nodes["n1"]; n == nil || n.LinkAddress[5] != 1 || n.NodeAddr() != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("node %+v", n)
	}
	if len(b.Problems) != 1 || b.Problems[0].Object != "Pod ns/b" || fmt.Sprint(b.PoolOrder) != "[p]" || b.Configs["default"] == nil {
		t.Errorf("problems %v, pools %v, configs %v", b.Problems, b.PoolOrder, b.Configs)
	}

	// What happens while the sink is busy arrives as one batch, with the last word on each object.
	slices := f.kube.DiscoveryV1().EndpointSlices("ns")
	pods := f.kube.CoreV1().Pods("ns")
	if _, err := slices.Update(t.Context(), slice(false), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The deliverer is in the sink with the change above; what comes now has to wait.
	arrives(t, func() bool { return f.entered.Load() == 2 })
	if _, err := slices.Update(t.Context(), slice(true), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(t.Context(), pod("c", "3", "10.244.0.3"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	arrives(t, func() bool {
		f.w.mu.Lock()
		defer f.w.mu.Unlock()
		b := f.w.pending
		_, cSeen := b.Pods[model.Name{Namespace: "ns", Name: "c"}]
		bPod, bSeen := b.Pods[model.Name{Namespace: "ns", Name: "b"}]
		return len(b.Slices) > 0 && cSeen && b.Pods[model.Name{Namespace: "ns", Name: "c"}] == nil && bSeen && bPod == nil
	})
	for i := 0; ; i++ {
		b := f.next(t, "squashed")
		d := b.Apply(c)
		if b.Full || len(b.Slices) > 0 && len(d.Slices) != 1 {
			t.Errorf("batch %+v dirty %+v", b, d)
		}
		if s := c.Slices[model.Name{Namespace: "ns", Name: "s-1"}]; s.Endpoints[0].Ready && c.Pods.Len() == 1 {
			if len(b.Problems) > 0 || !b.ProblemsChanged {
				t.Errorf("problems after the pod is gone: %+v", b.Problems)
			}
			break
		}
		if i >= 1 {
			t.Fatalf("more than two batches: %+v", b)
		}
	}
}

// arrives waits until something is so.
func arrives(t *testing.T, done func() bool) {
	t.Helper()
	await.That(t, "a change arrives", func() error {
		if !done() {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestUnimportantChangesAreNotDelivered(t *testing.T) {
	f := newFixture(t, pod("a", "1", "10.244.0.1"))
	f.run(t)
	f.first(t)
	p := pod("a", "1", "10.244.0.1")
	p.Annotations["other"] = "y"
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := f.kube.CoreV1().Pods("ns").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.kube.CoreV1().Pods("ns").Create(t.Context(), pod("z", "9", "10.244.0.9"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The fence is the second change: the first one comes before it, if at all.
	if b := f.next(t, "fence"); len(b.Pods) != 1 || b.Pods[model.Name{Namespace: "ns", Name: "z"}] == nil {
		t.Errorf("delivered %v", b.Pods)
	}
}

// Nothing is delivered while any list still fails, and the wait between two tries stays short.
func TestNothingBeforeEverythingWasRead(t *testing.T) {
	f := newFixture(t, pod("a", "1", "10.244.0.1"))
	var away atomic.Bool
	away.Store(true)
	f.kube.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		if away.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	f.run(t)
	select {
	case b := <-f.batches:
		t.Fatalf("delivered before services were read: %+v", b)
	case <-time.After(1500 * time.Millisecond):
	}
	if s := f.w.Status(); s.Synced || s.Connected || s.Err == "" {
		t.Errorf("status %+v", s)
	}
	away.Store(false)
	if b := f.next(t, "after the API server is back"); !b.Full || len(b.Pods) != 1 {
		t.Errorf("%+v", b)
	}
	if s := f.w.Status(); !s.Synced || !s.Connected {
		t.Errorf("status %+v", s)
	}
}

// While the API server is away the wait between two tries grows to lastRetry and not to client-go's
// half a minute.
func TestTriesAreNeverFarApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		p := &patient{resource: "pods", health: newHealth(slog.New(slog.DiscardHandler))}
		last, longest, tries := time.Now(), time.Duration(0), 0
		_, err := retry(ctx, p, "list", func(context.Context) (int, error) {
			longest, last, tries = max(longest, time.Since(last)), time.Now(), tries+1
			return 0, errors.New("connection refused")
		})
		if !errors.Is(err, context.DeadlineExceeded) || longest > lastRetry || longest < lastRetry/2 {
			t.Errorf("%d tries in an hour, at most %s apart: %v", tries, longest, err)
		}
	})
}

func TestPodForAdd(t *testing.T) {
	f := newFixture(t, pod("a", "1", "10.244.0.1"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns",
		Labels: map[string]string{"l": "v"}, Annotations: map[string]string{"cni.projectcalico.org/ipv4pools": "[x]", "secret": "s"}}})
	static := pod("static", "api-uid", "10.244.0.5")
	static.Annotations[configHash] = "file-hash"
	if _, err := f.kube.CoreV1().Pods("ns").Create(t.Context(), static, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.run(t)
	f.first(t)
	name := model.Name{Namespace: "ns", Name: "a"}
	for _, uid := range []string{"", "1"} {
		got, err := f.w.PodForAdd(t.Context(), name, uid)
		if err != nil || got.UID != "1" || got.Annotations["cni.projectcalico.org/ipAddrs"] != "[]" || len(got.Annotations) != 1 ||
			got.NamespaceAnnotations["cni.projectcalico.org/ipv4pools"] != "[x]" || len(got.NamespaceAnnotations) != 1 || got.Namespace.Labels["l"] != "v" {
			t.Errorf("uid %q: %+v %v", uid, got, err)
		}
	}
	if got, err := f.w.PodForAdd(t.Context(), model.Name{Namespace: "ns", Name: "static"}, "file-hash"); err != nil || got.UID != "api-uid" {
		t.Errorf("static pod: %+v %v", got, err)
	}
	if _, err := f.w.PodForAdd(t.Context(), name, "2"); !errors.Is(err, ErrPodReplaced) {
		t.Errorf("another UID: %v", err)
	}
	if _, err := f.w.PodForAdd(t.Context(), model.Name{Namespace: "ns", Name: "none"}, "1"); !apierrors.IsNotFound(err) {
		t.Errorf("no such pod: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.w.PodForAdd(ctx, model.Name{Namespace: "ns", Name: "none"}, "1"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	for _, c := range []struct {
		name, uid, node string
		want            bool
	}{{"a", "1", "n1", true}, {"a", "", "n1", true}, {"a", "2", "n1", false}, {"a", "1", "n2", false}, {"none", "1", "n1", false}} {
		if got := f.w.PodLives(model.Name{Namespace: "ns", Name: c.name}, c.uid, c.node); got != c.want {
			t.Errorf("PodLives(%s, %s, %s) = %v", c.name, c.uid, c.node, got)
		}
	}
	fresh := newFixture(t)
	if !fresh.w.PodLives(name, "1", "n1") {
		t.Error("a pod is said to be dead before the cluster was read")
	}
}

func TestAbsentDefinitions(t *testing.T) {
	h := newHealth(slog.New(slog.NewTextHandler(io.Discard, nil)))
	now := time.Now()
	h.now = func() time.Time { return now }
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "x"}, "")
	h.failed("ippools.projectcalico.org", notFound)
	h.failed("servicecidrs.networking.k8s.io", notFound)
	if h.isAbsent("ippools.projectcalico.org") {
		t.Error("absent at the first answer")
	}
	now = now.Add(absentAfter)
	h.failed("ippools.projectcalico.org", notFound)
	if !h.isAbsent("ippools.projectcalico.org") || fmt.Sprint(h.status().Missing) != "[ippools.projectcalico.org]" || !h.status().Connected {
		t.Errorf("%+v", h.status())
	}
	h.failed("ippools.projectcalico.org", errors.New("connection refused"))
	if h.isAbsent("ippools.projectcalico.org") || h.status().Connected {
		t.Errorf("a server that is away was taken for one without the definition: %+v", h.status())
	}
	h.ok("ippools.projectcalico.org")
	if !h.status().Connected {
		t.Errorf("%+v", h.status())
	}
}

// TestHeard holds that a request of somebody else counts for whether the API server answers, by its
// answer, whatever that is.
func TestHeard(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	now := time.Now()
	h.now = func() time.Time { return now }
	connected := func(want bool, since time.Time) {
		t.Helper()
		if st := h.status(); st.Connected != want || !st.Since.Equal(since) {
			t.Errorf("%+v, want connected: %v since %s", st, want, since)
		}
	}
	began := h.since
	h.heard("report", apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", nil))
	connected(true, began)
	now = now.Add(time.Minute)
	lost := now
	h.heard("report", context.DeadlineExceeded)
	now = now.Add(time.Minute)
	h.heard("report", context.DeadlineExceeded)
	connected(false, lost)
	if st := h.status(); !strings.Contains(st.Err, "report: context deadline exceeded") {
		t.Errorf("why: %q", st.Err)
	}
	h.ok("pods") // what another request says does not count for this one
	connected(false, lost)
	now = now.Add(time.Minute)
	h.heard("report", nil)
	connected(true, now)
}
