// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// says waits until weir status ends with the code and says all of the words.
func (l *lab) says(t *testing.T, code int, words ...string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("weir status says %q", words), func() error {
		out, got := l.weir(t, "status")
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Errorf("it does not say %q: %s", w, out)
			}
		}
		if got != code {
			return fmt.Errorf("its code is %d, want %d: %s", got, code, out)
		}
		return nil
	})
}

// TestConfigurationOutOfRange: a value that is out of range does not come into force, the one
// before stays, and the status says what to do.
func TestConfigurationOutOfRange(t *testing.T) {
	b := sharedBase(t)
	// vxlanMTU shows in the links of new pods once VXLAN is in use: a value in force that can be
	// seen.
	b.poolMode(t, "Always")
	b.patchFelix(t, `{"vxlanMTU":1400}`, "vxlanMTU")
	mtu := func(what string, want int) {
		t.Helper()
		eventually(t, 15*time.Second, what, func() error {
			name := fmt.Sprintf("m%x", time.Now().UnixNano())
			p := b.start(t, b.idle(name, "worker1", nil))[0]
			return p.hasMTU(want)
		})
	}
	mtu("the good value", 1400)
	b.patchFelix(t, `{"vxlanMTU":70000}`)
	b.says(t, 1, "FelixConfiguration default", "vxlanMTU", "70000", "576", "65485")
	mtu("the last good value", 1400)
	// It stays the last good one for a new agent, too.
	old := map[string]string{}
	for node := range nodes {
		pid, err := b.agentPID(node)
		if err != nil {
			t.Fatal(err)
		}
		old[node] = pid
		if err := b.fresh(node); err != nil {
			t.Fatal(err)
		}
	}
	b.agentsReady(t, 60*time.Second, old)
	mtu("the last good value after a restart", 1400)
	b.patchFelix(t, `{"vxlanMTU":1420}`)
	mtu("the next good value", 1420)
	b.says(t, 0, "healthy on 3 of 3")
}

// pool makes an IPPool that goes with the test.
func (l *lab) pool(t *testing.T, name, spec string) {
	t.Helper()
	l.mustKubectl(t, fmt.Sprintf(`{"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": %q}, "spec": %s}`, name, spec), "apply", "-f", "-")
	t.Cleanup(func() {
		_, _ = l.kubectl("", "delete", "ippools.projectcalico.org", name, "--ignore-not-found", "--wait=false")
	})
}

func TestOverlappingPool(t *testing.T) {
	b := sharedBase(t)
	b.pool(t, "twin", `{cidr: 10.244.64.0/18, natOutgoing: true}`)
	b.says(t, 1, "IPPool twin", "spec.cidr", "10.244.64.0/18", "default")
	// What is in force is not touched.
	p := b.start(t, b.idle("later", "worker1", nil))[0]
	p.reaches(t, at(b.srv2.addr, whoPort), "srv2", p.addr)
	b.mustKubectl(t, "", "delete", "ippools.projectcalico.org", "twin")
	b.says(t, 0, "healthy on 3 of 3")
}

// fails waits until the events of a pod say all of the words.
func (s *space) fails(t *testing.T, pod string, words ...string) {
	t.Helper()
	eventually(t, 30*time.Second, "pod "+pod+" fails", func() error {
		events := s.events(pod)
		for _, e := range events {
			said := 0
			for _, w := range words {
				if strings.Contains(e, w) {
					said++
				}
			}
			if said == len(words) {
				return nil
			}
		}
		return fmt.Errorf("no event says %q: %q", words, events)
	})
}

func TestExhaustedPool(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	b.pool(t, "tiny", `{cidr: 10.250.0.0/29, blockSize: 29, natOutgoing: true}`)
	tiny := func(name string) *corev1.Pod {
		p := b.idle(name, "worker1", nil)
		p.Annotations["cni.projectcalico.org/ipv4pools"] = `["tiny"]`
		return p
	}
	var pods []*corev1.Pod
	for i := range 8 {
		pods = append(pods, tiny(fmt.Sprintf("t%d", i)))
	}
	seen := map[string]bool{}
	for _, p := range b.start(t, pods...) {
		if seen[p.addr] || !strings.HasPrefix(p.addr, "10.250.0.") {
			t.Errorf("pod %s has address %s", p.pod, p.addr)
		}
		seen[p.addr] = true
		p.reaches(t, at(b.srv2.addr, whoPort), "srv2", p.addr)
	}
	b.create(t, tiny("toomany"))
	b.fails(t, "toomany", "tiny", "10.250.0.0/29")
	for _, e := range b.events("toomany") {
		if strings.HasPrefix(e, "FailedCreatePodSandBox") {
			fmt.Printf("    %s: %s\n", t.Name(), e)
		}
	}
	// An address that is free again is given to the pod that waits.
	now := int64(0)
	if err := b.kube.CoreV1().Pods(b.ns).Delete(context.Background(), "t3", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ready("toomany", 60*time.Second); err != nil {
		t.Error(err)
	}
}

func TestFixedAddressTaken(t *testing.T) {
	b := sharedBase(t)
	fixed := func(name, addr string) *corev1.Pod {
		p := b.idle(name, "worker2", nil)
		p.Annotations["cni.projectcalico.org/ipAddrs"] = `["` + addr + `"]`
		return p
	}
	first := b.start(t, fixed("first", "10.244.200.7"))[0]
	if first.addr != "10.244.200.7" {
		t.Errorf("the pod has address %s", first.addr)
	}
	b.cli1.reaches(t, at(b.srv2.addr, whoPort), "srv2", "")
	if out, err := b.cli1.do("ping", "-c1", "-W30", first.addr); err != nil {
		t.Errorf("the fixed address is not reached: %s", out)
	}
	b.create(t, fixed("second", "10.244.200.7"))
	b.fails(t, "second", "10.244.200.7", b.ns+"/first")
	for _, e := range b.events("second") {
		if strings.HasPrefix(e, "FailedCreatePodSandBox") {
			fmt.Printf("    %s: %s\n", t.Name(), e)
		}
	}
	if out, err := b.cli1.do("ping", "-c1", "-W30", first.addr); err != nil {
		t.Errorf("the fixed address is no longer reached: %s", out)
	}
}
