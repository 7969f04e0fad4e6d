// SPDX-License-Identifier: Apache-2.0

package defaults

import "testing"

func TestDirections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ingressRules, egressRules               int
		ingress, egress, kubernetes, kubeEgress bool
	}{
		{0, 0, true, false, true, false},
		{2, 0, true, false, true, false},
		{0, 1, false, true, true, true},
		{1, 3, true, true, true, true},
	} {
		if in, out := Directions(c.ingressRules, c.egressRules); in != c.ingress || out != c.egress {
			t.Errorf("%d rules of ingress and %d of egress: %v %v", c.ingressRules, c.egressRules, in, out)
		}
		if in, out := KubernetesDirections(c.egressRules); in != c.kubernetes || out != c.kubeEgress {
			t.Errorf("%d rules of egress of Kubernetes: %v %v", c.egressRules, in, out)
		}
	}
	if Tier("") != "default" || Tier("a") != "a" {
		t.Error("the tier is another one")
	}
}
