// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"sort"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// steps are the numbers of pods that may change each second where the highest one is looked for
// with which the machine is not too busy.
var steps = []int{1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300}

// tryFor is how long a step is tried.
const tryFor = 4 * time.Second

// highest is the index of the last step with which the machine is at most maxBusy busy; -1 = there
// is none.
func highest(busy func(rate int) float64) int {
	return sort.Search(len(steps), func(i int) bool { return busy(steps[i]) > maxBusy }) - 1
}

// findRate measures the row of the highest number of pods that may change each second while the
// machine is at most maxBusy busy, as far as it is not among the rows that are there. Probes make
// the machine busier than the load that was tried, so a lower one may have to be measured too.
func (s *site) findRate(m *AgentResult) {
	if len(s.only) > 0 {
		return
	}
	at := highest(func(rate int) float64 {
		r := s.beginLoad(podLoad(rate))
		time.Sleep(time.Second)
		w := s.openWindow()
		time.Sleep(tryFor)
		row := s.closeWindow(w, "")
		if err := r.end(); err != nil {
			say("%d pods each second: %v", rate, err)
			return 1
		}
		time.Sleep(2 * time.Second) // what is left to do
		say("%d pods each second: the machine is %.0f %% busy", rate, 100*row.Busy)
		return row.Busy
	})
	for tries := 3; at >= 0 && tries > 0; at, tries = at-1, tries-1 {
		l := podLoad(steps[at])
		row := m.row(l.name)
		if row == nil {
			m.Rows = append(m.Rows, s.measureRow(l, true))
			s.save()
			row = &m.Rows[len(m.Rows)-1]
		}
		if row.BusyDuring <= maxBusy {
			s.rate = steps[at]
			return
		}
	}
	say("with no number of pods that change each second the machine is at most %.0f %% busy", 100*maxBusy)
}

// policyOfOnePod counts the streams that get a policy which selects one pod.
func (s *site) policyOfOnePod() {
	p := s.pods[len(s.pods)-1]
	patch := func(value string) {
		_, err := s.kube.CoreV1().Pods(p.space).Patch(s.ctx, p.name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"only":%s}}}`, value), metav1.PatchOptions{})
		s.must(err)
		time.Sleep(2 * time.Second) // all streams that get it have it, and nothing else changes
	}
	patch(`"one"`)
	before := s.standInsNow(true)
	policy := s.policyOfAll(p.space, "one-pod", metav1.LabelSelector{MatchLabels: map[string]string{"only": "one"}})
	policy.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "192.168.0.0/16"}}}
	policies := s.kube.NetworkingV1().NetworkPolicies(p.space)
	_, err := policies.Create(s.ctx, policy, metav1.CreateOptions{})
	s.must(err)
	time.Sleep(2 * time.Second)
	s.result.OnePodStreams = s.standInsNow(true).Messages - before.Messages
	s.must(policies.Delete(s.ctx, policy.Name, metav1.DeleteOptions{}))
	patch("null")
	say("a policy that selects one pod is sent on %d streams", s.result.OnePodStreams)
}
