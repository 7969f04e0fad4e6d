// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/fanout/names"
)

// fanOut returns the replicas of the fan-out.
func (l *lab) fanOut(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := l.kube.CoreV1().Pods(weirNamespace).List(context.Background(), metav1.ListOptions{LabelSelector: "k8s-app=" + names.Name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// endFanOut ends a replica of the fan-out without any warning.
func (l *lab) endFanOut(t *testing.T, p corev1.Pod) {
	t.Helper()
	now := int64(0)
	if err := l.kube.CoreV1().Pods(weirNamespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// fanOutReady waits until two replicas other than some are ready, and agents can know.
func (l *lab) fanOutReady(t *testing.T, gone ...corev1.Pod) {
	t.Helper()
	eventually(t, time.Minute, "two replicas of the fan-out are published", func() error {
		slice, err := l.kube.DiscoveryV1().EndpointSlices(weirNamespace).Get(context.Background(), names.Slice, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, e := range slice.Endpoints {
			for _, p := range gone {
				if e.TargetRef.UID == p.UID {
					return fmt.Errorf("%s is published still", p.Name)
				}
			}
		}
		if len(slice.Endpoints) != 2 {
			return fmt.Errorf("%d are", len(slice.Endpoints))
		}
		return nil
	})
}

// TestFanOut has agents that may not read the cluster, and have it from a fan-out: traffic notices
// nothing when replicas end, policy is in force within seconds, and no pod starts without it.
func TestFanOut(t *testing.T) {
	l := dualLab()
	l.inParallel(t)
	startDual(t)
	for _, what := range []string{"pods", "networkpolicies.networking.k8s.io", "endpointslices.discovery.k8s.io", "services"} {
		for _, verb := range []string{"list", "watch"} {
			out, err := l.kubectl("", "auth", "can-i", verb, what, "-A", "--as", "system:serviceaccount:"+weirNamespace+":weir-node")
			if err == nil || !strings.HasPrefix(out, "no") {
				t.Errorf("agents may %s %s: %s %v", verb, what, out, err)
			}
		}
	}
	b := &base{space: l.newSpace(t, "fanout")}
	b.fill(t)
	b.works(t)
	aside := b.start(t, b.server("aside", "worker1", nil))[0] // of no traffic but the test's own
	eventually(t, 90*time.Second, "weir status says who feeds the agents", func() error {
		out, _ := l.weir(t, "status")
		if !strings.Contains(out, "Agents that have the cluster from a fan-out:") || !strings.Contains(out, fmt.Sprint(":", names.Port, ": ")) {
			return fmt.Errorf("%s", out)
		}
		for _, p := range l.fanOut(t) { // by what it reports with the rights that it has
			if !regexp.MustCompile(p.Name + ` on ` + p.Spec.NodeName + `: \d nodes;?.* in touch with the API server since `).MatchString(out) {
				return fmt.Errorf("nothing of %s: %s", p.Name, out)
			}
		}
		return nil
	})
	agents, err := l.kube.CoreV1().Pods(weirNamespace).List(context.Background(), metav1.ListOptions{LabelSelector: "k8s-app=weir-node", FieldSelector: "spec.nodeName=worker1"})
	if err != nil || len(agents.Items) != 1 {
		t.Fatalf("%d agents of worker1: %v", len(agents.Items), err)
	}
	out, err := l.kubectl("", "exec", "-n", weirNamespace, agents.Items[0].Name, "-c", "weir-node", "--", "/weir", "status", "--local")
	if err != nil || !strings.HasPrefix(out, "worker1, agent ") || !strings.Contains(out, "Source: fan-out ") || !strings.Contains(out, " old\n") {
		t.Errorf("what an agent says of itself: %v\n%s", err, out)
	}
	to := at(aside.addr, whoPort)
	traffic := b.load(t)
	for i := range 2 {
		replicas := l.fanOut(t)
		l.endFanOut(t, replicas[i%len(replicas)])
		began := time.Now()
		b.policy(t, "closed", `{podSelector: {matchLabels: {pod: aside}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: srv2}}}]}]}`)
		b.cli1.soon(t, to, false)
		note(t, fmt.Sprintf("policy in force after a replica ended, %d (s)", i), time.Since(began).Seconds())
		b.noPolicy(t, "closed")
		b.cli1.soon(t, to, true)
		l.fanOutReady(t, replicas[i%len(replicas)])
	}
	// None is there for some seconds: what is open goes on, and a pod that is made meanwhile starts
	// later, with its policy.
	replicas := l.fanOut(t)
	for _, p := range replicas {
		l.endFanOut(t, p)
	}
	b.cli1.reaches(t, to, "aside", b.cli1.addr)
	b.jailed(t, 6)
	l.fanOutReady(t, replicas...)
	traffic.unnoticed(t)
}
