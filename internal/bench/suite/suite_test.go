// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stest "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

// world is a cluster whose pods are servers of this process, at loopback addresses that only this
// process uses.
type world struct {
	*Cluster
	kube *fake.Clientset
	mu   sync.Mutex
	at   map[string]probe.Listening
	runs []string // tests that were made
	// hook is called before each measurement.
	hook func(pod string, s probe.Spec) error
}

// worlds counts them.
var worlds atomic.Int64

func newWorld(t *testing.T, nodes ...*corev1.Node) *world {
	t.Helper()
	w := &world{kube: fake.NewClientset(), at: map[string]probe.Listening{}}
	for _, n := range nodes {
		if err := w.kube.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	// Servers of an earlier test may still be about to end: each world has addresses of its own.
	number := int(worlds.Add(1))
	address := func(i int) netip.Addr {
		pid := os.Getpid()
		return netip.AddrFrom4([4]byte{127, byte(1 + number%250), byte(pid), byte(i + 16*(pid>>8&15))})
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w.kube.PrependReactor("create", "services", func(a k8stest.Action) (bool, runtime.Object, error) {
		v := a.(k8stest.CreateAction).GetObject().(*corev1.Service)
		v.Spec.ClusterIP = address(1).String()
		return false, nil, nil
	})
	w.kube.PrependReactor("create", "pods", func(a k8stest.Action) (bool, runtime.Object, error) {
		p := a.(k8stest.CreateAction).GetObject().(*corev1.Pod)
		p.Status.Phase = corev1.PodRunning
		w.mu.Lock()
		i := len(w.at) + 2
		w.mu.Unlock()
		s := &probe.Server{At: address(i), Name: p.Name}
		if p.Name == podServer {
			s.At, s.Port = address(1), servicePort
		}
		secret, err := w.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), a.GetNamespace(), secretName)
		if err != nil {
			return true, nil, err
		}
		s.Token = secret.(*corev1.Secret).StringData["token"]
		up := make(chan probe.Listening)
		go func() {
			if err := s.Run(ctx, func(l probe.Listening) { up <- l }); err != nil {
				t.Errorf("%s: %v", p.Name, err)
				close(up)
			}
		}()
		l := <-up
		w.mu.Lock()
		w.at[p.Name] = l
		w.mu.Unlock()
		return false, nil, nil
	})
	w.Cluster = &Cluster{Kube: w.kube, Run: w.run, Logs: func(_ context.Context, _, pod string) ([]byte, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		line, err := json.Marshal(w.at[pod])
		return append(line, '\n'), err
	}}
	return w
}

// run does what weir-bench does in a pod.
func (w *world) run(ctx context.Context, namespace, pod string, command []string) ([]byte, error) {
	if command[0] != program {
		return nil, fmt.Errorf("command %v", command)
	}
	if command[1] == "node" {
		n, err := probe.ReadDescription(ctx)
		n.Daemons = []probe.Daemon{{Name: "cilium-agent"}}
		return mustJSON(n), err
	}
	var s probe.Spec
	if err := json.Unmarshal([]byte(command[2]), &s); err != nil {
		return nil, err
	}
	if s.Test != probe.Ping {
		w.mu.Lock()
		w.runs = append(w.runs, string(s.Test))
		w.mu.Unlock()
		if w.hook != nil {
			if err := w.hook(pod, s); err != nil {
				return nil, err
			}
		}
	}
	// Nothing here is about time.
	s.Duration, s.WarmUp, s.Count = min(s.Duration, 20*time.Millisecond), 0, min(s.Count, 50)
	secret, err := w.kube.CoreV1().Secrets(namespace).Get(ctx, secretName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	r, err := (&probe.Client{Token: secret.StringData["token"]}).Measure(ctx, s)
	return mustJSON(r), err
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func node(name string, ready bool, taints ...corev1.Taint) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
}

var controlPlaneTaint = corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}

// listener is a Progress.
type listener struct{ lines []string }

func (l *listener) Say(s string)                                       { l.lines = append(l.lines, s) }
func (l *listener) Begin(_, _, round int, row string, _ time.Duration) {}
func (l *listener) End(row, figure string)                             { l.lines = append(l.lines, row+": "+figure) }

func nothingLeft(t *testing.T, w *world) {
	t.Helper()
	list, err := w.kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("%d namespaces are left, %v", len(list.Items), err)
	}
}

func TestRun(t *testing.T) {
	w := newWorld(t, node("cp", true, controlPlaneTaint), node("a", true), node("b", true), node("c", false))
	o := Defaults()
	o.Rows, o.Rounds = []string{"idle", "host2host/tcp", "pod2pod", "pod2svc/udp", "pod2pod-local/crr"}, 2
	saved := 0
	f, err := Run(t.Context(), w.Cluster, o, &listener{}, func(*result.File) error { saved++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if f.Metadata.ClientNode != "b" && f.Metadata.ClientNode != "a" || f.Metadata.ClientNode == f.Metadata.ServerNode {
		t.Errorf("nodes %+v", f.Metadata)
	}
	if len(f.Rows) != 15 || saved != 2 {
		t.Fatalf("%d rows, saved %d times", len(f.Rows), saved)
	}
	for _, r := range f.Rows {
		if len(r.Rounds) != 2 || r.Rounds[0].Error != "" || len(r.Values[r.Main()].All) != 2 {
			t.Errorf("%s: %+v", r.ID, r)
		}
	}
	if r := f.Row("pod2pod/tcp"); r.ToHost[result.Bandwidth].Median <= 0 {
		t.Errorf("no ratio to the nodes themselves: %+v", r.ToHost)
	}
	if d := f.Data; d.Pod2Pod == nil || d.Pod2Pod.TCP.Bandwidth <= 0 || d.Pod2Svc == nil || d.Pod2Svc.TCP != nil || d.Idle == nil {
		t.Errorf("knb's names: %+v", d)
	}
	if f.Cluster.DataPlane != "Cilium, no kube-proxy" || !f.Cluster.OneMachine || len(f.Warnings) == 0 {
		t.Errorf("the cluster is %+v, %v", f.Cluster, f.Warnings)
	}
	// Forwards, then backwards.
	half := len(w.runs) / 2
	back := slices.Clone(w.runs[half:])
	slices.Reverse(back)
	if !slices.Equal(w.runs[:half], back) {
		t.Errorf("order %v", w.runs)
	}
	var out strings.Builder
	if err := f.Show(&out); err != nil || !strings.Contains(out.String(), "pod2pod/tcp") || !strings.Contains(out.String(), "rounds: the interval") {
		t.Errorf("%v\n%s", err, out.String())
	}
	nothingLeft(t, w)
}

// What was measured before Ctrl-C is there, and everything is removed.
func TestInterrupted(t *testing.T) {
	w := newWorld(t, node("a", true), node("b", true))
	ctx, cancel := context.WithCancelCause(t.Context())
	n := 0
	w.hook = func(string, probe.Spec) error {
		if n++; n == 4 {
			cancel(errors.New("the user has enough"))
		}
		return nil
	}
	o := Defaults()
	o.Rows, o.Rounds = []string{"pod2pod/tcp-rr", "pod2pod/crr"}, 5
	f, err := Run(ctx, w.Cluster, o, &listener{}, func(*result.File) error { return nil })
	if err == nil || f == nil || f.Interrupted != "the user has enough" {
		t.Fatalf("%v, %+v", err, f)
	}
	if a, b := len(f.Rows[0].Rounds), len(f.Rows[1].Rounds); a+b != 3 || f.Rows[1].Values[result.Mean].Median <= 0 {
		t.Errorf("%d and %d rounds", a, b)
	}
	nothingLeft(t, w)
}

// A measurement that fails is part of the result.
func TestFailedRound(t *testing.T) {
	w := newWorld(t, node("a", true), node("b", true))
	n := 0
	w.hook = func(string, probe.Spec) error {
		if n++; n == 2 {
			return errors.New("no answer")
		}
		return nil
	}
	o := Defaults()
	o.Rows, o.Rounds = []string{"host2host/udp-rr"}, 3
	f, err := Run(t.Context(), w.Cluster, o, &listener{}, func(*result.File) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	r := f.Rows[0]
	if len(r.Values[result.Mean].All) != 2 || !slices.ContainsFunc(r.Warnings, func(s string) bool { return strings.Contains(s, "1 of 3 rounds failed: no answer") }) {
		t.Errorf("%+v", r)
	}
}

func TestNoTwoNodes(t *testing.T) {
	for _, nodes := range [][]*corev1.Node{{node("a", true)}, {node("a", true), node("b", false)}, {node("a", true), node("b", true, controlPlaneTaint)}} {
		w := newWorld(t, nodes...)
		if _, err := Run(t.Context(), w.Cluster, Defaults(), &listener{}, nil); err == nil || !strings.Contains(err.Error(), "--client-node") {
			t.Errorf("%v", err)
		}
		nothingLeft(t, w)
	}
	w := newWorld(t, node("a", true), node("b", true))
	o := Defaults()
	o.ClientNode = "nowhere"
	if _, err := Run(t.Context(), w.Cluster, o, &listener{}, nil); err == nil || !strings.Contains(err.Error(), `no ready node "nowhere"`) {
		t.Errorf("%v", err)
	}
}

// A pod whose image is not there says so.
func TestImageIsMissing(t *testing.T) {
	w := newWorld(t, node("a", true), node("b", true))
	w.kube.PrependReactor("create", "pods", func(a k8stest.Action) (bool, runtime.Object, error) {
		p := a.(k8stest.CreateAction).GetObject().(*corev1.Pod).DeepCopy()
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}
		return true, p, w.kube.Tracker().Create(corev1.SchemeGroupVersion.WithResource("pods"), p, a.GetNamespace())
	})
	o := Defaults()
	o.PodPatience = 0
	if _, err := Run(t.Context(), w.Cluster, o, &listener{}, nil); err == nil || !strings.Contains(err.Error(), "ErrImagePull (give the nodes the image") {
		t.Errorf("%v", err)
	}
	nothingLeft(t, w)
}

func TestPlan(t *testing.T) {
	for words, want := range map[string]string{
		"p2ptcp,idle":     "idle pod2pod/tcp",
		"p2s":             "pod2svc/tcp pod2svc/udp",
		"pod2*/crr":       "pod2pod/crr pod2svc/crr pod2pod-local/crr pod2svc-local/crr",
		"pod2svc/ab":      "pod2svc/ab",
		"control":         "control/endpoint control/policy control/pod",
		"outside2*/http":  "outside2nodeport/http",
		"host2nodeport/*": "host2nodeport/tcp host2nodeport/tcp-many host2nodeport/udp host2nodeport/udp-rate host2nodeport/tcp-rr host2nodeport/udp-rr host2nodeport/crr host2nodeport/http host2nodeport/ab host2nodeport/cps host2nodeport/pps",
	} {
		o := Defaults()
		o.Rows = strings.Split(words, ",")
		rows, err := plan(&o)
		var got []string
		for _, r := range rows {
			got = append(got, r.id)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v", words, got, err)
		}
	}
	for _, bad := range []string{"", "x", "pod2pod/x", "["} {
		o := Defaults()
		o.Rows = []string{bad}
		if rows, err := plan(&o); err == nil {
			t.Errorf("%q: %d rows", bad, len(rows))
		}
	}
	for group, count := range map[string]int{"default": 28, "all": 89, "tcp": 9 - 1, "local": 33, "outside": 11} {
		o := Defaults()
		o.Rows = []string{group}
		rows, err := plan(&o)
		if err != nil || len(rows) != count {
			t.Errorf("%s: %d rows, want %d, %v", group, len(rows), count, err)
		}
	}
}

func TestInWords(t *testing.T) {
	daemons := func(names ...string) probe.Node {
		var n probe.Node
		for _, name := range names {
			n.Daemons = append(n.Daemons, probe.Daemon{Name: name})
		}
		return n
	}
	with := func(n probe.Node, mode string) probe.Node { n.KubeProxy = mode; return n }
	for want, c := range map[string]struct {
		node  probe.Node
		found map[string]string
	}{
		"Weir (DSR), no kube-proxy":                             {with(daemons("weir-agent", "weir-controller"), "weir"), map[string]string{"felix.bpfExternalServiceMode": "DSR"}},
		"bird, Calico eBPF, kube-proxy iptables":                {with(daemons("bird", "calico-node", "kube-proxy"), "iptables"), map[string]string{"felix.bpfEnabled": "true"}},
		"no known daemon of a pod network, kube-proxy nftables": {with(daemons(), "nftables"), nil},
		"flanneld, kube-proxy":                                  {daemons("flanneld", "kube-proxy"), nil},
		"no known daemon of a pod network, no kube-proxy":       {daemons(), nil},
	} {
		cluster := result.Cluster{Client: result.Node{Node: c.node}, Server: result.Node{Node: c.node}, Found: c.found}
		if got := inWords(&cluster); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for i, change := range []func(*Options){
		func(o *Options) { o.Duration = 0 }, func(o *Options) { o.Rounds = 0 }, func(o *Options) { o.Streams = 0 }, func(o *Options) { o.UDPRate = 0 },
		func(o *Options) { o.Services = []int{10, 5} }, func(o *Options) { o.Services = []int{-1} }, func(o *Options) { o.IPFamily = "6" },
		func(o *Options) { o.Image = "" }, func(o *Options) { o.Policies = -1 }, func(o *Options) { o.WarmUp = -1 }, func(o *Options) { o.Requests = 0 },
	} {
		o := Defaults()
		if change(&o); o.Check() == nil {
			t.Errorf("change %d was taken", i)
		}
	}
}

// What a pod may do on its node: nothing; and it is bound to end.
func TestPodsHaveNoRights(t *testing.T) {
	o := Defaults()
	for _, name := range []string{podServer, podNear, podClient, podServerHost, podClientHost} {
		p := podObject(&o, name, "n", 100, true)
		c := p.Spec.Containers[0].SecurityContext
		if *p.Spec.ActiveDeadlineSeconds != 100 || !*p.Spec.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem ||
			c.Capabilities.Drop[0] != "ALL" || len(p.Spec.Volumes) > 0 {
			t.Errorf("%s: %+v", name, p.Spec)
		}
		if *p.Spec.AutomountServiceAccountToken != (name == podClient) {
			t.Errorf("%s: token of a service account: %v", name, *p.Spec.AutomountServiceAccountToken)
		}
	}
}
