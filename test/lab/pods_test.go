// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const image = "registry.k8s.io/e2e-test-images/agnhost:2.56"

// Ports of server pods.
const (
	httpPort = 8080
	udpPort  = 8081
	echoPort = 9000
	whoPort  = 9001
)

const namespaceLabel = "weir-lab-test"

// space is a namespace of tests.
type space struct {
	*lab
	ns string
}

// newSpace makes a namespace for a test, which goes with it.
func (l *lab) newSpace(t *testing.T, name string) *space {
	t.Helper()
	s := l.makeSpace(t, name)
	t.Cleanup(func() { l.removeNamespace(s.ns) })
	return s
}

// makeSpace makes a namespace and waits until pods can be made in it.
func (l *lab) makeSpace(t *testing.T, name string) *space {
	t.Helper()
	s := &space{lab: l, ns: fmt.Sprintf("%s-%x", name, time.Now().UnixNano()%0xfffff)}
	ctx := context.Background()
	_, err := l.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: s.ns, Labels: map[string]string{namespaceLabel: "yes", "name": name}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	eventually(t, 30*time.Second, "the default service account", func() error {
		_, err := l.kube.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

func (l *lab) removeNamespace(ns string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	now := int64(0)
	_ = l.kube.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	// Its node ports are for the next test.
	if list, err := l.kube.CoreV1().Services(ns).List(ctx, metav1.ListOptions{}); err == nil {
		for _, svc := range list.Items {
			_ = l.kube.CoreV1().Services(ns).Delete(ctx, svc.Name, metav1.DeleteOptions{})
		}
	}
	_ = l.kube.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{})
}

// removeNamespaces removes what tests that were cut short left.
func (l *lab) removeNamespaces() {
	if l.kube == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	list, err := l.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: namespaceLabel})
	if err != nil {
		return
	}
	for _, ns := range list.Items {
		if ns.DeletionTimestamp == nil {
			l.removeNamespace(ns.Name)
		}
	}
}

// podSpec is a pod of the traffic program, or of any other.
func (s *space) podSpec(name, node string, command []string, labels map[string]string) *corev1.Pod {
	zero := int64(0)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["pod"] = name
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.ns, Labels: labels, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &zero, RestartPolicy: corev1.RestartPolicyNever,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Volumes: []corev1.Volume{{Name: "t", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Dir(s.traffic)}}}},
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullNever, Command: command,
				VolumeMounts: []corev1.VolumeMount{{Name: "t", MountPath: "/t", ReadOnly: true}},
			}},
		},
	}
}

// server is a pod that answers at all ports, and is ready when it does.
func (s *space) server(name, node string, labels map[string]string) *corev1.Pod {
	p := s.podSpec(name, node, []string{"/t/traffic", "server", "--name", name, fmt.Sprintf("--http=%d", httpPort),
		fmt.Sprintf("--who=%d", whoPort), fmt.Sprintf("--echo=%d", echoPort), fmt.Sprintf("--udp=%d", udpPort)}, labels)
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(httpPort)}}, PeriodSeconds: 1, TimeoutSeconds: 5}
	return p
}

// idle is a pod that does nothing.
func (s *space) idle(name, node string, labels map[string]string) *corev1.Pod {
	return s.podSpec(name, node, []string{"/agnhost", "pause"}, labels)
}

func (s *space) create(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if _, err := s.kube.CoreV1().Pods(s.ns).Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create pod %s: %v", p.Name, err)
	}
}

// start creates pods and returns them when all are ready.
func (s *space) start(t *testing.T, pods ...*corev1.Pod) []*place {
	t.Helper()
	for _, p := range pods {
		s.create(t, p)
	}
	out := make([]*place, len(pods))
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() { out[i], errs[i] = s.ready(p.Name, 5*time.Minute) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return out
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ready waits for a pod to be ready and finds where it is.
func (s *space) ready(name string, limit time.Duration) (*place, error) {
	ctx := context.Background()
	var pod *corev1.Pod
	err := poll(limit, func() error {
		var err error
		if pod, err = s.kube.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !isReady(pod) {
			return fmt.Errorf("pod %s is %s and not ready", name, pod.Status.Phase)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w; events: %s", err, strings.Join(s.events(name), " | "))
	}
	pid, err := s.containerPID(pod.Spec.NodeName, pod.Status.ContainerStatuses[0].ContainerID)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	return &place{lab: s.lab, machine: pod.Spec.NodeName, pod: name, ns: s.ns, pid: pid, addr: pod.Status.PodIP, addr6: second(pod.Status.PodIPs)}, nil
}

// second is a pod's address of the other family, if it has one.
func second(ips []corev1.PodIP) string {
	if len(ips) < 2 {
		return ""
	}
	return ips[1].IP
}

// containerPID is the first process of a container as its node numbers it.
func (l *lab) containerPID(node, id string) (string, error) {
	id = strings.TrimPrefix(id, "containerd://")
	tasks, err := l.exec(node, "ctr", "--namespace", "k8s.io", "tasks", "list")
	if err != nil {
		return "", fmt.Errorf("list the containers of %s: %w", node, err)
	}
	for line := range strings.Lines(tasks) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == id && f[2] == "RUNNING" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("container %s does not run on %s", id, node)
}

// events are what was said about a pod.
func (s *space) events(pod string) []string {
	list, err := s.kube.CoreV1().Events(s.ns).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// service makes a Service; with nodePort 0 it is a ClusterIP.
func (s *space) service(t *testing.T, name string, selector map[string]string, nodePort int32, change func(*corev1.Service)) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.ns},
		Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{
			{Name: "http", Port: httpPort, TargetPort: intstr.FromInt32(httpPort)},
			{Name: "who", Port: whoPort, TargetPort: intstr.FromInt32(whoPort)},
			{Name: "echo", Port: echoPort, TargetPort: intstr.FromInt32(echoPort)},
			{Name: "udp", Protocol: corev1.ProtocolUDP, Port: udpPort, TargetPort: intstr.FromInt32(udpPort)},
		}},
	}
	if nodePort > 0 {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = nodePort + int32(i)
		}
	}
	if change != nil {
		change(svc)
	}
	made, err := s.kube.CoreV1().Services(s.ns).Create(context.Background(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create Service %s: %v", name, err)
	}
	return made
}

// Offsets of the ports of a NodePort Service.
const (
	nodeHTTP = 0
	nodeWho  = 1
	nodeEcho = 2
	nodeUDP  = 3
)

func at(addr string, port int32) string { return net.JoinHostPort(addr, strconv.Itoa(int(port))) }

const udpProtocol = corev1.ProtocolUDP

// exitCodes waits until so many pods whose names begin with one of the prefixes have ended, and
// returns the exit codes of their programs by pod; -1 where there is none.
func (s *space) exitCodes(t *testing.T, count int, prefixes ...string) map[string]int32 {
	t.Helper()
	var codes map[string]int32
	eventually(t, 5*time.Minute, "all pods have ended", func() error {
		list, err := s.kube.CoreV1().Pods(s.ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		codes = map[string]int32{}
		for _, p := range list.Items {
			if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) ||
				p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				continue
			}
			codes[p.Name] = -1
			if st := p.Status.ContainerStatuses; len(st) == 1 && st[0].State.Terminated != nil {
				codes[p.Name] = st[0].State.Terminated.ExitCode
			}
		}
		if len(codes) < count {
			return fmt.Errorf("%d of %d have ended", len(codes), count)
		}
		return nil
	})
	return codes
}
