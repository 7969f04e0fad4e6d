// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The most that an ADD may take, ms.
const (
	addP50 = 20
	addP99 = 80
	// disturbed is the control's p99 from which on other programs of the machine hold up what an
	// ADD does many times.
	disturbed = 20
)

// TestCNICalls calls the plugin as a runtime does, for 100 pods, and measures each call with its
// process. The pods exist in the API, and kubelet waits for a volume that never comes, so nobody
// else calls it for them.
func TestCNICalls(t *testing.T) {
	figures.begin(t)
	s := all.newSpace(t, "cnicalls")
	const count = 100
	var wg sync.WaitGroup
	for i := range count {
		p := s.idle(fmt.Sprintf("p-%d", i), "worker1", nil)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "never", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "never"}}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "never", MountPath: "/never"})
		wg.Go(func() {
			if _, err := s.kube.CoreV1().Pods(s.ns).Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// What else the machine does is not what is measured: the best of three rounds counts.
	var best cniTimes
	for round := range 3 {
		times := s.callPlugin(t, count)
		if round == 0 || percentile(times.Add, 0.99) < percentile(best.Add, 0.99) {
			best = times
		}
		if !*strictTiming || percentile(best.Add, 0.5) <= addP50 && percentile(best.Add, 0.99) <= addP99 {
			break
		}
	}
	p50, p99 := percentile(best.Add, 0.5), percentile(best.Add, 0.99)
	note(t, "ADD, with the plugin's process: p50 (ms)", p50)
	note(t, "ADD, with the plugin's process: p99 (ms)", p99)
	note(t, "DEL, with the plugin's process: p50 (ms)", percentile(best.Del, 0.5))
	note(t, "DEL, with the plugin's process: p99 (ms)", percentile(best.Del, 0.99))
	alone := percentile(best.Control, 0.99)
	note(t, "a namespace and a process, without ADD: p99 (ms)", alone)
	if !*strictTiming {
		return
	}
	if alone > disturbed {
		// Then only what is beyond any disturbance is a failure; the figures show the rest.
		t.Logf("the machine is busy with other things: a namespace and a process alone take %.1f ms", alone)
		if limit := 3*addP50 + 4*percentile(best.Control, 0.5); p50 > limit {
			t.Errorf("ADD takes p50 %.1f ms, want at most %.1f", p50, limit)
		}
		return
	}
	if p50 > addP50 || p99 > addP99 {
		t.Errorf("ADD takes p50 %.1f ms, p99 %.1f ms; at most %d and %d are allowed", p50, p99, addP50, addP99)
	}
}

// cniTimes are the times of calls in ms.
type cniTimes struct {
	Add []float64 `json:"add_ms"`
	Del []float64 `json:"del_ms"`
	// Control is what the machine takes without Weir: a namespace and a process.
	Control []float64 `json:"control_ms"`
}

// callPlugin calls the plugin for pods p-0 … on worker1: ADD for each, then DEL for each.
func (s *space) callPlugin(t *testing.T, count int) cniTimes {
	t.Helper()
	out := s.must(t, "worker1", s.traffic, "cni", "--namespace", s.ns, "--prefix", "p", "--count", fmt.Sprint(count))
	var res cniTimes
	if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.Add) != count || len(res.Del) != count {
		t.Fatalf("%v: %s", err, out)
	}
	return res
}

// TestHundredPods starts 100 pods at once and reads from the agents' logs what each ADD took in the
// agent, while kubelets and runtimes keep every CPU busy.
func TestHundredPods(t *testing.T) {
	figures.begin(t)
	s := all.newSpace(t, "hundred")
	const count = 100
	since := time.Now()
	var pods []*corev1.Pod
	for i := range count {
		pods = append(pods, s.idle(fmt.Sprintf("p-%d", i), []string{"worker1", "worker2"}[i%2], nil))
	}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			if _, err := s.kube.CoreV1().Pods(s.ns).Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	eventually(t, 10*time.Minute, "100 pods run", func() error {
		n, _, err := s.running()
		if err == nil && n < count {
			err = fmt.Errorf("%d of %d run", n, count)
		}
		return err
	})
	note(t, "all run after (s)", time.Since(since).Seconds())
	if _, addrs, err := s.running(); err != nil || len(addrs) != count {
		t.Errorf("%d pods have %d addresses: %v", count, len(addrs), err)
	}
	var took []float64
	for _, node := range []string{"worker1", "worker2"} {
		took = append(took, s.addTimes(t, node, since)...)
	}
	if len(took) < count { // more when a runtime lost patience and asked again
		t.Errorf("the agents report %d ADDs, want %d", len(took), count)
	}
	note(t, "ADD in the agent, 100 pods at once: p50 (ms)", percentile(took, 0.5))
	note(t, "ADD in the agent, 100 pods at once: p99 (ms)", percentile(took, 0.99))
}

// running counts pods that run, and their addresses.
func (s *space) running() (int, map[string]string, error) {
	list, err := s.kube.CoreV1().Pods(s.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	n, addrs := 0, map[string]string{}
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" && p.DeletionTimestamp == nil {
			n++
			if other := addrs[p.Status.PodIP]; other != "" {
				return n, addrs, fmt.Errorf("pods %s and %s both have %s", other, p.Name, p.Status.PodIP)
			}
			addrs[p.Status.PodIP] = p.Name
		}
	}
	return n, addrs, nil
}

// pending says of each pod that does not run what its kubelet said about it.
func (s *space) pending() []string {
	list, err := s.kube.CoreV1().Pods(s.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, p := range list.Items {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			out = append(out, fmt.Sprintf("%s on %s: %s, deleted %v: %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp, strings.Join(s.events(p.Name), " | ")))
		}
	}
	return out
}

// addTimes are the times of the ADDs of this namespace's pods that a node's agent logged, ms.
func (s *space) addTimes(t *testing.T, node string, since time.Time) []float64 {
	t.Helper()
	pod, err := s.agentPod(node)
	if err != nil {
		t.Fatal(err)
	}
	var took []float64
	log := s.mustKubectl(t, "", "logs", "-n", weirNamespace, pod.Name, "-c", "weir-node", "--since-time="+since.UTC().Format(time.RFC3339))
	for line := range strings.Lines(log) {
		var l struct {
			Msg     string        `json:"msg"`
			Command string        `json:"command"`
			Pod     string        `json:"pod"`
			Error   string        `json:"error"`
			Took    time.Duration `json:"took"`
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "CNI call" && l.Command == "ADD" && l.Error == "" && strings.HasPrefix(l.Pod, s.ns+"/") {
			took = append(took, float64(l.Took.Microseconds())/1000)
		}
	}
	return took
}

// TestChurn makes and deletes pods while the agents are killed again and again. Afterwards no
// address is lost or given twice.
func TestChurn(t *testing.T) {
	figures.begin(t)
	s := all.newSpace(t, "churn")
	ctx := context.Background()
	stop := make(chan struct{})
	var killer sync.WaitGroup
	var kills atomic.Int32
	killer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Second):
			}
			node := []string{"worker1", "worker2"}[i%2]
			// On a slow machine an agent's start takes longer than that: one that never ends it
			// starts no pods.
			if p, err := s.agentPod(node); err != nil || !isReady(p) {
				continue
			}
			if _, err := s.killAgent(node); err == nil {
				kills.Add(1)
			}
			_ = s.fresh(node) // else kubelet would wait longer each time
		}
	})
	now := int64(0)
	const count, rounds = 30, 2
	for round := range rounds {
		for i := range count {
			s.create(t, s.idle(fmt.Sprintf("c%d-%d", round, i), []string{"worker1", "worker2"}[i%2], nil))
		}
		// Some go while they are being started.
		for i := 0; i < count; i += 3 {
			_ = s.kube.CoreV1().Pods(s.ns).Delete(ctx, fmt.Sprintf("c%d-%d", round, i), metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		err := poll(5*time.Minute, func() error {
			n, _, err := s.running()
			if want := count - (count+2)/3; err == nil && n < want {
				err = fmt.Errorf("%d of %d pods run", n, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("round %d: %v: %s", round, err, strings.Join(s.pending(), "; "))
		}
		if round < rounds-1 {
			_ = s.kube.CoreV1().Pods(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		}
	}
	eventually(t, 0, "three agents are killed", func() error {
		if n := kills.Load(); n < 3 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	close(stop)
	killer.Wait()
	s.agentsReady(t, 60*time.Second, nil)
	note(t, "kills", float64(kills.Load()))
	// No address twice, in all of the cluster.
	list, err := s.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for _, p := range list.Items {
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.Status.Phase != corev1.PodRunning {
			continue
		}
		name := p.Namespace + "/" + p.Name
		if other := by[p.Status.PodIP]; other != "" {
			t.Errorf("%s and %s both have %s", other, name, p.Status.PodIP)
		}
		by[p.Status.PodIP] = name
	}
	s.checkIPAM(t)
	_ = s.kube.CoreV1().Pods(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	eventually(t, 30*time.Second, "the pods are gone", func() error {
		if list, err := s.kube.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			return fmt.Errorf("%d are left %v", len(list.Items), err)
		}
		return nil
	})
	s.checkIPAM(t)
}

// checkIPAM waits for weir ipam check to be content, in the cluster and on each node: pods may just
// be starting or ending. Where agents may not read the cluster, those in their pods say what to do.
func (l *lab) checkIPAM(t *testing.T) {
	t.Helper()
	eventually(t, 60*time.Second, "weir ipam check", func() error {
		if out, code := l.weir(t, "ipam", "check", "--live"); code != 0 || !strings.Contains(out, fmt.Sprintf(" allocations of %d nodes", len(nodes))) {
			return fmt.Errorf("code %d: %s", code, out)
		}
		may, err := l.kubectl("", "auth", "can-i", "list", "pods", "-A", "--as", "system:serviceaccount:"+weirNamespace+":weir-node")
		fed := err != nil && strings.HasPrefix(may, "no")
		if err != nil && !fed {
			return fmt.Errorf("whether agents may list pods: %w", err)
		}
		for node := range nodes {
			pod, err := l.agentPod(node)
			if err != nil {
				return err
			}
			out, err := l.kubectl("", "exec", "-n", weirNamespace, pod.Name, "-c", "weir-node", "--", "/weir", "ipam", "check")
			if fed && (err == nil || !strings.Contains(err.Error(), "weir ipam check --live")) {
				return fmt.Errorf("on %s, without the rights: %v: %s", node, err, out)
			} else if !fed && err != nil {
				return fmt.Errorf("on %s: %w: %s", node, err, out)
			}
		}
		return nil
	})
}
