// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/bench/probe"
)

// Cluster is what a run needs of one.
type Cluster struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface // to learn settings of data planes; nil = none are looked for
	// Run runs a command in a pod and returns what it prints. An error carries what it says.
	Run func(ctx context.Context, namespace, pod string, command []string) ([]byte, error)
	// Logs returns what a pod's program has printed.
	Logs func(ctx context.Context, namespace, pod string) ([]byte, error)
}

// site is what a run has made in a cluster.
type site struct {
	*Cluster
	o         *Options
	namespace string // set when it may be there
	started   string // the namespace of the pods that control/pod starts, likewise
	token     string
	client    string // nodes
	server    string
	oneNode   bool
	at        map[string]probe.Listening // by pod
	service   probe.Listening
	nodePort  probe.Listening
	moving    probe.Listening // the Service whose endpoint changes
	usual     string          // TCP congestion control of the client's node
	fillers   int
	policies  int
	say       func(string)
}

// chooseNodes takes what was asked for, or the first two nodes that would take pods.
func (s *site) chooseNodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	ready, usable := map[string]bool{}, []string{}
	for _, n := range list.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				ready[n.Name] = true
			}
		}
		free := !n.Spec.Unschedulable
		for _, t := range n.Spec.Taints {
			free = free && t.Effect == corev1.TaintEffectPreferNoSchedule
		}
		if ready[n.Name] && free {
			usable = append(usable, n.Name)
		}
	}
	s.client, s.server = s.o.ClientNode, s.o.ServerNode
	for _, to := range []*string{&s.client, &s.server} {
		for _, name := range usable {
			if *to == "" && name != s.client && name != s.server {
				*to = name
			}
		}
		if *to == "" {
			return nil, errors.New("the cluster has not two ready nodes that take pods: name them with --client-node and --server-node; the same name twice measures one node")
		}
		if !ready[*to] {
			return nil, fmt.Errorf("there is no ready node %q", *to)
		}
	}
	s.oneNode = s.client == s.server
	return list.Items, nil
}

// build makes the pods and Services and waits until they are there.
func (s *site) build(ctx context.Context, rows []planned, limit time.Duration) error {
	if err := s.makeNamespace(ctx, &s.namespace, namespaceObject(s.o, newNamespace())); err != nil {
		return err
	}
	s.say("namespace " + s.namespace)
	var err error
	if s.token, err = newToken(); err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretName}, StringData: map[string]string{"token": s.token}}
	if _, err := s.Kube.CoreV1().Secrets(s.namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the secret with the token: %w", err)
	}
	control := false
	nodePort := false
	for _, r := range rows {
		control = control || isControl(r.spec.Test)
		nodePort = nodePort || r.to == toNodePort
	}
	if control {
		if err := s.buildControl(ctx); err != nil {
			return err
		}
	}
	pods := map[string]string{podServer: s.server, podNear: s.server, podServerHost: s.server, podClient: s.client, podClientHost: s.client}
	if control {
		pods[podOther], pods[podPolicy] = s.server, s.server
	}
	for name, node := range pods {
		p := podObject(s.o, name, node, seconds(limit), control)
		if err := s.create(ctx, p); err != nil {
			return err
		}
	}
	if s.service, err = s.makeService(ctx, "server", corev1.ServiceTypeClusterIP); err != nil {
		return err
	}
	s.at = map[string]probe.Listening{}
	for name := range pods {
		if s.at[name], err = s.awaitPod(ctx, name); err != nil {
			return err
		}
	}
	if err := s.rightFamily(); err != nil {
		return err
	}
	if control {
		if err := s.finishControl(ctx); err != nil {
			return err
		}
	}
	if nodePort {
		if s.nodePort, err = s.makeService(ctx, "server-nodeport", corev1.ServiceTypeNodePort); err != nil {
			return err
		}
	}
	return nil
}

// seconds is a limit that the API server takes for a pod.
func seconds(limit time.Duration) int64 { return min(int64(limit.Seconds()), math.MaxInt32) }

// makeNamespace makes one, and sets name as soon as it may be there: when ctx ends meanwhile,
// nobody knows.
func (s *site) makeNamespace(ctx context.Context, name *string, ns *corev1.Namespace) error {
	*name = ns.Name
	_, err := s.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code/100 == 4 {
		*name = "" // the API server refused, so there is none of ours
	}
	return fmt.Errorf("making the namespace %s: %w", ns.Name, err)
}

// rightFamily returns an error when pods and nodes serve at addresses of another family than was
// asked for: they have one address each here, the first.
func (s *site) rightFamily() error {
	for _, name := range []string{podServer, podServerHost} {
		at, six := s.at[name].To.Addr(), s.o.IPFamily == "IPv6"
		if s.o.IPFamily != "" && at.Is6() != six {
			return fmt.Errorf("%s was asked for, and the first address of the pod %s is %v: only Services would be of that family; "+
				"it can be measured in clusters whose first family it is", s.o.IPFamily, name, at)
		}
	}
	return nil
}

// create makes a pod, again while the namespace has no service account yet.
func (s *site) create(ctx context.Context, p *corev1.Pod) error {
	return poll(ctx, 30*time.Second, func() (bool, error) {
		_, err := s.Kube.CoreV1().Pods(s.namespace).Create(ctx, p, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "serviceaccount") {
			return false, fmt.Errorf("making the pod %s: %w", p.Name, err)
		}
		if err != nil {
			return true, fmt.Errorf("making the pod %s: %w", p.Name, err)
		}
		return true, nil
	})
}

// poll tries until it is done, and returns the last error when that takes too long.
func poll(ctx context.Context, limit time.Duration, try func() (done bool, err error)) error {
	for began := time.Now(); ; {
		done, err := try()
		if done {
			return err
		}
		if time.Since(began) > limit {
			return fmt.Errorf("not within %v: %w", limit, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s *site) makeService(ctx context.Context, name string, kind corev1.ServiceType) (probe.Listening, error) {
	v, err := s.Kube.CoreV1().Services(s.namespace).Create(ctx, serviceObject(s.o, name, kind), metav1.CreateOptions{})
	if err != nil {
		return probe.Listening{}, fmt.Errorf("making the Service %s: %w", name, err)
	}
	if kind == corev1.ServiceTypeNodePort {
		// Both ports at the server's node.
		at := s.at[podServerHost].To.Addr()
		out := probe.Listening{}
		for _, p := range v.Spec.Ports {
			to := netip.AddrPortFrom(at, uint16(p.NodePort))
			if p.Protocol == corev1.ProtocolTCP {
				out.To = to
			} else {
				out.UDP = to
			}
		}
		return out, nil
	}
	ip, err := netip.ParseAddr(v.Spec.ClusterIP)
	if err != nil {
		return probe.Listening{}, fmt.Errorf("the cluster IP of the Service %s: %w", name, err)
	}
	to := netip.AddrPortFrom(ip, servicePort)
	return probe.Listening{To: to, UDP: to}, nil
}

// awaitPod waits until a pod serves, and learns where.
func (s *site) awaitPod(ctx context.Context, name string) (probe.Listening, error) {
	var at probe.Listening
	err := poll(ctx, s.o.PodPatience, func() (bool, error) {
		p, err := s.Kube.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("looking for the pod %s: %w", name, err)
		}
		if p.Status.Phase != corev1.PodRunning {
			err := fmt.Errorf("the pod %s on node %s is %s%s", name, p.Spec.NodeName, p.Status.Phase, waitsFor(p))
			return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded, err
		}
		said, err := s.Logs(ctx, s.namespace, name)
		if err != nil {
			return false, fmt.Errorf("reading where the pod %s listens: %w", name, err)
		}
		line, _, whole := bytes.Cut(said, []byte("\n"))
		if !whole {
			return false, fmt.Errorf("the pod %s has not said where it listens", name)
		}
		if err := json.Unmarshal(line, &at); err != nil {
			return true, fmt.Errorf("the pod %s says %q: is its image that of weir-bench? %w", name, line, err)
		}
		return true, nil
	})
	return at, err
}

// waitsFor is what keeps a pod from running, in the kubelet's words.
func waitsFor(p *corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			text := ": " + w.Reason
			if w.Message != "" {
				text += ": " + w.Message
			}
			if strings.Contains(w.Reason, "Image") {
				text += " (give the nodes the image, or name another one with --image)"
			}
			return text
		}
	}
	if p.Status.Message != "" {
		return ": " + p.Status.Message
	}
	return ""
}

// spec completes what a row measures.
func (s *site) spec(r planned) probe.Spec {
	out := r.spec
	var at probe.Listening
	switch r.to {
	case toHost:
		at = s.at[podServerHost]
	case toPod:
		at = s.at[podServer]
	case toService:
		at, out.Direct = s.service, s.at[podServer].To
	case toNodePort:
		at, out.Direct = s.nodePort, s.at[podServer].To
	}
	if r.from == outside {
		out.Direct = at.To
	}
	out.To, out.UDP = at.To, at.UDP
	if out.Congestion == "" {
		// A pod's network namespace may have another one than its node's: paths would differ by it.
		out.Congestion, out.CongestionIfAllowed = s.usual, true
	}
	if isControl(out.Test) {
		out.Control = s.control(out.Test)
		switch out.Test {
		case probe.Endpoint:
			out.To, out.UDP, out.Direct = s.moving.To, s.moving.UDP, s.at[podServer].To
		case probe.Policy:
			out.To, out.UDP, out.Direct = s.at[podPolicy].To, s.at[podPolicy].UDP, s.at[podServer].To
		case probe.PodStart:
			out.UDP = s.at[podClient].UDP // its own address, where the pod says hello
		}
	}
	return out
}

func isControl(t probe.Test) bool {
	return t == probe.Endpoint || t == probe.Policy || t == probe.PodStart
}

// probe measures once.
func (s *site) probe(ctx context.Context, from string, spec probe.Spec) (probe.Result, error) {
	var r probe.Result
	if from == outside {
		return (&probe.Client{Token: s.token}).Measure(ctx, spec)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return r, err
	}
	out, err := s.Run(ctx, s.namespace, from, []string{program, "probe", string(text)})
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("the result from the pod %s: %w", from, err)
	}
	return r, nil
}

// node describes the node of a pod.
func (s *site) node(ctx context.Context, pod string) (probe.Node, error) {
	var n probe.Node
	out, err := s.Run(ctx, s.namespace, pod, []string{program, "node"})
	if err != nil {
		return n, fmt.Errorf("asking what the node of %s is: %w", pod, err)
	}
	if err := json.Unmarshal(out, &n); err != nil {
		return n, fmt.Errorf("what the node of %s is: %w", pod, err)
	}
	return n, nil
}

// reachable waits until all paths work that will be measured.
func (s *site) reachable(ctx context.Context, rows []planned) error {
	seen := map[string]bool{}
	for _, r := range rows {
		if isControl(r.spec.Test) {
			continue
		}
		spec := s.spec(r)
		key := r.from + " " + spec.To.String()
		if seen[key] {
			continue
		}
		seen[key] = true
		spec = probe.Spec{Test: probe.Ping, To: spec.To, UDP: spec.UDP, Patience: time.Second}
		err := poll(ctx, time.Minute, func() (bool, error) {
			_, err := s.probe(ctx, r.from, spec)
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("%s does not work: from %s to %v: %w", r.id, r.from, spec.To, err)
		}
	}
	return nil
}

// removal bounds how long removing takes; it does not listen to Ctrl-C.
const removal = 3 * time.Minute

// remove deletes the namespaces and waits until they are gone.
func (s *site) remove(ctx context.Context) error {
	var errs []error
	for _, name := range []string{s.started, s.namespace} {
		if name != "" {
			s.say("removing the namespace " + name)
			errs = append(errs, RemoveNamespace(ctx, s.Kube, name))
		}
	}
	return errors.Join(errs...)
}

// RemoveNamespace deletes a namespace with all that is in it, and waits until it is gone.
func RemoveNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	if err := kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the namespace %s (weir bench clean tries again): %w", name, err)
	}
	err := poll(ctx, removal, func() (bool, error) {
		_, err := kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, errors.Join(errors.New("it is still there"), err)
	})
	if err != nil {
		return fmt.Errorf("removing the namespace %s (the cluster goes on by itself; weir bench clean tries again): %w", name, err)
	}
	return nil
}

// Clean removes what runs left that were killed.
func Clean(ctx context.Context, kube kubernetes.Interface, out io.Writer) error {
	list, err := kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: Label})
	if err != nil {
		return fmt.Errorf("looking for what runs left behind: %w", err)
	}
	var errs []error
	for _, n := range list.Items {
		fmt.Fprintf(out, "removing the namespace %s\n", n.Name)
		errs = append(errs, RemoveNamespace(ctx, kube, n.Name))
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(out, "There is nothing to remove.")
	}
	return errors.Join(errs...)
}
