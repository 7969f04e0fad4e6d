// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

const agentUser = "system:serviceaccount:kube-system:weir-node"

// follower keeps what a watch hands on.
type follower struct {
	mu       sync.Mutex
	cluster  *model.Cluster
	batches  int
	problems []weirv1.Problem
	configs  map[string]*watch.FelixConfig
}

func (f *follower) sink(_ context.Context, b *watch.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches++
	b.Apply(f.cluster)
	if b.ProblemsChanged {
		f.problems = b.Problems
	}
	for n, c := range b.Configs {
		f.configs[n] = c
	}
}

func (f *follower) eventually(t *testing.T, within time.Duration, what string, check func() error) {
	t.Helper()
	apitest.Eventually(t, within, what, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		return check()
	})
}

// weir runs the command line against the server.
func weir(t *testing.T, kubeconfig, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(append([]string{"--kubeconfig", kubeconfig}, args...))
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetIn(strings.NewReader(stdin))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// One API server for the whole story: a watch that starts before anything is installed, the
// installation, rights, the objects, an API server that goes away, and the controller.
func TestAgainstAnAPIServer(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	kubeconfig := s.Kubeconfig()
	ctx := t.Context()

	f := &follower{cluster: model.NewCluster(), configs: map[string]*watch.FelixConfig{}}
	w, err := watch.New(watch.Config{Core: s.Clients.Core, Dynamic: s.Clients.Dynamic, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	go w.Run(ctx, f.sink)
	f.eventually(t, 20*time.Second, "first batch without the CRDs", func() error {
		if st := w.Status(); f.batches == 0 || len(f.cluster.Namespaces) < 4 || !st.Connected || len(st.Missing) != 19 {
			return fmt.Errorf("%d batches, %d namespaces, %+v", f.batches, len(f.cluster.Namespaces), st)
		}
		return nil
	})

	out, err := weir(t, kubeconfig, "", "status")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(out, "weir install") {
		t.Errorf("status of a cluster without Weir: %v\n%s", err, out)
	}
	apitest.Eventually(t, 30*time.Second, "the Service kubernetes", func() error {
		list, err := s.Clients.Kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("no EndpointSlice")
		}
		return err
	})
	for i := range 2 { // the second time changes nothing, and works
		out, err = weir(t, kubeconfig, "", "install", "--wait=false")
		if err != nil {
			t.Fatalf("install: %v\n%s", err, out)
		}
		if !strings.Contains(out, apitest.Advertised) {
			t.Errorf("install does not find the API server's address:\n%s", out)
		}
		testFanOutReplicas(t, s, i)
	}
	if out, _ := weir(t, kubeconfig, "", "status"); strings.Contains(out, "ValidatingAdmissionPolicy") {
		t.Errorf("the policies of admission that were just installed:\n%s", out)
	}
	f.eventually(t, 5*time.Second, "the first pool", func() error {
		if p := f.cluster.Pools["default"]; p == nil || p.CIDR.String() != "10.244.0.0/16" || p.VXLAN != model.EncapCrossSubnet || !p.NATOutgoing {
			return fmt.Errorf("%+v; %+v", p, w.Status())
		}
		return nil
	})

	t.Run("objects", func(t *testing.T) { testObjects(t, s, f, kubeconfig) })
	t.Run("cluster policies", func(t *testing.T) { testClusterPolicies(t, s, f, kubeconfig) })
	t.Run("rights", func(t *testing.T) { testRights(t, s) })
	t.Run("status", func(t *testing.T) { testStatus(t, s, kubeconfig) })
	t.Run("status of BGP", func(t *testing.T) { testStatusOfBGP(t, s, kubeconfig) })
	t.Run("live", func(t *testing.T) { testLive(t, s, kubeconfig) })
	t.Run("away", func(t *testing.T) { testAway(t, s, f, w) })
	t.Run("ipam", func(t *testing.T) { testIPAM(t, s, kubeconfig) })
	t.Run("ipam on a node", func(t *testing.T) { testNodeIPAM(t, s, kubeconfig) })
	t.Run("load balancers", func(t *testing.T) { testBalancers(t, s, f, kubeconfig) })
	t.Run("controller", func(t *testing.T) { testController(t, s) })
	t.Run("uninstall", func(t *testing.T) {
		keepTierAndPool(t, s)
		if out, err := weir(t, kubeconfig, "", "install", "--wait=false", "--flows", "--wireguard-go"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		// What options brought goes without them.
		if out, err := weir(t, kubeconfig, "", "uninstall"); err != nil || !strings.Contains(out, "are kept") || !strings.Contains(out, "/weir-flows") || !strings.Contains(out, "/weir-wireguard") {
			t.Errorf("%v\n%s", err, out)
		}
		if out, err := weir(t, kubeconfig, "", "uninstall", "--purge"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		// An API server serves a kind for some moments after its definition was deleted.
		f.eventually(t, 15*time.Second, "the kinds to be gone", func() error {
			out, err := weir(t, kubeconfig, "", "get", "ippools")
			if err == nil || !strings.Contains(err.Error(), "weir install") {
				return fmt.Errorf("%v\n%s", err, out)
			}
			return nil
		})
	})
}

// testRights checks that the agent's rights are enough to watch, and end at its own node's objects.
func testRights(t *testing.T, s *apitest.Server) {
	agent := s.As(agentUser, "n1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &follower{cluster: model.NewCluster(), configs: map[string]*watch.FelixConfig{}}
	w, err := watch.New(watch.Config{Core: agent.Core, Dynamic: agent.Dynamic, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	go w.Run(ctx, f.sink)
	f.eventually(t, 10*time.Second, "the agent's own watch", func() error {
		if st := w.Status(); f.cluster.Pools["default"] == nil || !st.Connected || len(st.Missing) > 0 || !st.Synced {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	block := func(cidr, node string) *weirv1.IPAMBlock {
		p := netip.MustParsePrefix(cidr)
		return &weirv1.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: weirv1.BlockName(p)}, Spec: weirv1.IPAMBlockSpec{CIDR: cidr, Node: node, Pool: "default"}}
	}
	blocks := client.Blocks(agent.Dynamic)
	// The policy takes a moment to be in force.
	apitest.Eventually(t, 10*time.Second, "refusing a block for another node", func() error {
		_, err := blocks.Create(ctx, block("10.244.1.0/26", "n2"))
		if err == nil {
			_ = client.Blocks(s.Clients.Dynamic).Delete(ctx, weirv1.BlockName(netip.MustParsePrefix("10.244.1.0/26")), "")
			return errors.New("it was created")
		}
		if !strings.Contains(err.Error(), "agent of node n1") {
			return err
		}
		return nil
	})
	if _, err := blocks.Create(ctx, block("10.244.0.0/26", "n1")); err != nil {
		t.Errorf("claim a block: %v", err)
	}
	if _, err := client.Blocks(s.As(agentUser, "n2").Dynamic).Create(ctx, block("10.244.0.0/26", "n2")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a claimed block was claimed again: %v", err)
	}
	if err := client.Blocks(s.As(agentUser, "n2").Dynamic).Delete(ctx, "10-244-0-0-26", ""); err == nil {
		t.Error("another node's block was deleted")
	}
	f.eventually(t, 2*time.Second, "the block in the model", func() error {
		if b := f.cluster.Blocks[netip.MustParsePrefix("10.244.0.0/26")]; b == nil || b.Node != "n1" {
			return fmt.Errorf("%v", f.cluster.Blocks)
		}
		return nil
	})
	if err := blocks.Delete(ctx, "10-244-0-0-26", ""); err != nil {
		t.Errorf("give a block back: %v", err)
	}
	statuses := client.NodeStatuses(agent.Dynamic)
	if err := statuses.Apply(ctx, &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, "weir-agent"); err == nil {
		t.Error("the status of another node was written")
	}
	if err := agent.Kube.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an agent may delete nodes: %v", err)
	}
	if _, err := agent.Kube.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an agent may read secrets: %v", err)
	}
}

func testStatus(t *testing.T, s *apitest.Server, kubeconfig string) {
	ctx := t.Context()
	for _, n := range []string{"n1", "n2"} {
		_, err := s.Clients.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	agentRuns(t, s, "n1")
	now := metav1.Now()
	status := &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: weirv1.NodeStatusStatus{
		Version: "v1", Dataplane: "eBPF", NodeAddress: "192.0.2.11", NodeAddressIPv6: "fd00::11", LinkAddress: "02:00:5e:00:53:01", Subnets: []string{"192.0.2.0/24"},
		FanOut: "192.0.2.12:5473", LastHeartbeat: &now, Endpoints: 3, Announced: []string{"192.0.2.241"},
		Conditions:        []weirv1.Condition{{Type: weirv1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now}},
		Problems:          []weirv1.Problem{{Object: "FelixConfiguration default", Field: "spec.vxlanPort", Value: "70000", Message: "is out of range", Action: "correct it"}},
		UnsupportedFields: []string{"FelixConfiguration default spec.notAField = 1: not known"},
		Drops:             []weirv1.Drop{{Reason: "POLICY_INGRESS", Rule: "NetworkPolicy default/web", Packets: 7}},
	}}
	if err := client.NodeStatuses(s.As(agentUser, "n1").Dynamic).Apply(ctx, status, "weir-agent"); err != nil {
		t.Fatal(err)
	}
	out, err := weir(t, kubeconfig, "", "status")
	if !errors.Is(err, errUnhealthy) {
		t.Errorf("err %v", err)
	}
	for _, want := range []string{"n1", "192.0.2.11,fd00::11", "n1: 192.0.2.241", "192.0.2.12:5473: 1: n1", "no agent", "spec.vxlanPort", "notAField", "7 × POLICY_INGRESS", "Profile ours", "1 of 2"} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not mention %q:\n%s", want, out)
		}
	}
	t.Log("\n" + out)
	if out, err := weir(t, kubeconfig, "", "get", "nodestatuses"); err != nil || !strings.Contains(out, "True") {
		t.Errorf("get nodestatuses: %v\n%s", err, out)
	}
}

// agentRuns makes a pod of the agent that is ready, as a kubelet would.
func agentRuns(t *testing.T, s *apitest.Server, node string) {
	t.Helper()
	pods := s.Clients.Kube.CoreV1().Pods(deploy.Namespace)
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "weir-node-x", Labels: map[string]string{"k8s-app": "weir-node"}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, ServiceAccountName: "weir-node", AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testAway stops the API server: what is known stays, and changes catch up within seconds.
func testAway(t *testing.T, s *apitest.Server, f *follower, w *watch.Watcher) {
	s.Stop()
	apitest.Eventually(t, 5*time.Second, "noticing that the API server is away", func() error {
		if st := w.Status(); st.Connected || st.Err == "" || !st.Synced {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	f.mu.Lock()
	if f.cluster.Pools["default"] == nil {
		t.Error("the pool was forgotten")
	}
	f.mu.Unlock()
	s.StartAPIServer()
	if _, err := s.Clients.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, 6*time.Second, "catching up", func() error {
		if f.cluster.Namespaces["later"] == nil {
			return fmt.Errorf("%+v", w.Status())
		}
		return nil
	})
	apitest.Eventually(t, 6*time.Second, "being connected again", func() error {
		if st := w.Status(); !st.Connected {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	// An API server that was started reads which kinds there are once, perhaps before it serves
	// those of CRDs, and again every 30 s only. Until then it refuses what policies of admission
	// with such a kind as parameter hold: blocks and pools.
	apitest.Eventually(t, 90*time.Second, "admission knowing the kinds of parameters", func() error {
		p := netip.MustParsePrefix("10.244.9.0/26")
		_, err := s.Clients.Dynamic.Resource(weirv1.IPAMBlocks).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": weirv1.GroupVersion.String(), "kind": "IPAMBlock", "metadata": map[string]any{"name": weirv1.BlockName(p)},
			"spec": map[string]any{"cidr": p.String(), "node": "n1", "pool": "default"},
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}
