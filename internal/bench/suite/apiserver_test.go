// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

// kubelet plays kubelets and the controller of namespaces: pods serve at addresses of the loopback
// device, the server's at the cluster IP of its Service.
type kubelet struct {
	*apitest.Server
	t  *testing.T
	mu sync.Mutex
	at map[string]probe.Listening
}

func (k *kubelet) run(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		spaces, err := k.Clients.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: Label})
		if err != nil {
			continue
		}
		for _, n := range spaces.Items {
			if n.DeletionTimestamp != nil {
				n.Spec.Finalizers = nil
				_, _ = k.Clients.Kube.CoreV1().Namespaces().Finalize(ctx, &n, metav1.UpdateOptions{})
				continue
			}
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			_, _ = k.Clients.Kube.CoreV1().ServiceAccounts(n.Name).Create(ctx, account, metav1.CreateOptions{}) // its controller does not run here
			pods, err := k.Clients.Kube.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, p := range pods.Items {
				if p.Status.Phase != corev1.PodRunning {
					k.start(ctx, &p)
				}
			}
		}
	}
}

// start serves for a pod; it is tried again when something is not there yet.
func (k *kubelet) start(ctx context.Context, p *corev1.Pod) {
	k.mu.Lock()
	at := netip.AddrFrom4([4]byte{127, 1, 0, byte(len(k.at) + 1)})
	_, there := k.at[p.Name]
	k.mu.Unlock()
	if p.Name == podServer {
		v, err := k.Clients.Kube.CoreV1().Services(p.Namespace).Get(ctx, "server", metav1.GetOptions{})
		if err != nil {
			return
		}
		at = netip.MustParseAddr(v.Spec.ClusterIP)
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.AddrReplace(lo, &netlink.Addr{IPNet: netlink.NewIPNet(at.AsSlice())})
		}
		if err != nil {
			k.t.Errorf("giving the loopback device %v: %v", at, err)
		}
	}
	if !there {
		s := &probe.Server{At: at, Token: k.token(ctx, p.Namespace), Name: p.Name}
		if p.Name == podServer {
			s.Port = servicePort
		}
		up := make(chan probe.Listening, 1)
		go func() {
			if err := s.Run(ctx, func(l probe.Listening) { up <- l }); err != nil {
				k.t.Errorf("%s: %v", p.Name, err)
			}
		}()
		l := <-up
		k.mu.Lock()
		k.at[p.Name] = l
		k.mu.Unlock()
	}
	p.Status.Phase = corev1.PodRunning
	_, _ = k.Clients.Kube.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
}

func (k *kubelet) token(ctx context.Context, namespace string) string {
	s, err := k.Clients.Kube.CoreV1().Secrets(namespace).Get(ctx, secretName, metav1.GetOptions{})
	if err != nil {
		k.t.Errorf("the token: %v", err)
		return strings.Repeat("x", 32)
	}
	return string(s.Data["token"])
}

// exec does what weir-bench does in pods.
func (k *kubelet) exec(ctx context.Context, namespace, _ string, command []string) ([]byte, error) {
	if command[1] == "node" {
		n, err := probe.ReadDescription(ctx)
		return mustJSON(n), err
	}
	var s probe.Spec
	if err := json.Unmarshal([]byte(command[2]), &s); err != nil {
		return nil, err
	}
	if s.Test == probe.Ping && s.To.Addr().Is4() && !k.serves(s.To) {
		return []byte("{}"), nil // the Service that is made last: nobody carries it here
	}
	s.Duration, s.WarmUp, s.Count, s.Patience = min(s.Duration, 20*time.Millisecond), 0, min(s.Count, 20), await.Patience
	r, err := (&probe.Client{Token: k.token(ctx, namespace)}).Measure(ctx, s)
	return mustJSON(r), err
}

func (k *kubelet) serves(to netip.AddrPort) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.at {
		if l.To == to {
			return true
		}
	}
	return false
}

// TestRunAtAnAPIServer holds that a real API server takes all that a run makes.
func TestRunAtAnAPIServer(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, n := range []*corev1.Node{node("a", true), node("b", true)} {
		made, err := s.Clients.Kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status = n.Status
		if _, err := s.Clients.Kube.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		made.Spec.Taints = nil // the API server's, while a node is new
		if fresh, err := s.Clients.Kube.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{}); err == nil {
			fresh.Spec.Taints = nil
			if _, err := s.Clients.Kube.CoreV1().Nodes().Update(ctx, fresh, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	k := &kubelet{Server: s, t: t, at: map[string]probe.Listening{}}
	ended := make(chan struct{})
	go func() { k.run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	c := &Cluster{Kube: s.Clients.Kube, Run: k.exec, Logs: func(_ context.Context, _, pod string) ([]byte, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		return append(mustJSON(k.at[pod]), '\n'), nil
	}}
	o := Defaults()
	o.Rows, o.Rounds, o.Services, o.Policies, o.PodPatience = []string{"pod2svc/crr", "control"}, 1, []int{0, 20}, 5, await.Patience
	most := 0
	save := func(*result.File) error {
		list, err := s.Clients.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err == nil {
			most = max(most, len(list.Items))
		}
		return err
	}
	c.Run = func(ctx context.Context, namespace, pod string, command []string) ([]byte, error) {
		var spec probe.Spec
		if command[1] == "probe" && json.Unmarshal([]byte(command[2]), &spec) == nil && spec.Test == probe.PodStart {
			mayStart(t, s, &spec)
		}
		return k.exec(ctx, namespace, pod, command)
	}
	f, err := Run(ctx, c, o, &listener{}, save)
	if want := "no round succeeded of control/endpoint, control/policy, control/pod, control/endpoint@20"; f == nil || err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want %q", err, want)
	}
	if len(f.Rows) != 8 || most < 24 {
		t.Errorf("%d rows, %d Services at most", len(f.Rows), most)
	}
	for i := range f.Rows {
		r := &f.Rows[i]
		want := ""
		if strings.HasPrefix(r.ID, "control/") {
			want = "not a pod" // here nobody gives pods the API server's address
		}
		if got := r.Rounds[0].Error; got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: %q, want %q", r.Key(), got, want)
		}
	}
	if f.Cluster.Kubernetes == "" || fmt.Sprint(f.Settings.Services) != "[0 20]" {
		t.Errorf("%+v", f.Cluster)
	}
	list, err := s.Clients.Kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: Label})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("%d namespaces are left, %v", len(list.Items), err)
	}
}

// mayStart holds that the API server takes the pod that control/pod starts, and no pod there that
// is more than that.
func mayStart(t *testing.T, s *apitest.Server, spec *probe.Spec) {
	var p corev1.Pod
	if err := json.Unmarshal(spec.Control.Pod, &p); err != nil {
		t.Error(err)
		return
	}
	p.Name = "started"
	try := func() error {
		_, err := s.Clients.Kube.CoreV1().Pods(spec.Control.Namespace).Create(t.Context(), &p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	await.That(t, "the API server takes the started pod", try)
	p.Spec.HostPID = true
	if err := try(); err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
		t.Errorf("a pod that sees the node's processes: %v", err)
	}
}
