// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/model"
)

// TestEgressPolicies: by an EgressGatewayPolicy pods leave by other gateways for other
// destinations, the longest prefix counts; they use one of two where it says so, and that of their
// node where they prefer it; and what it exempts leaves without. `weir why` and `weir status` say
// so.
func TestEgressPolicies(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	b.patchFelix(t, `{"egressIPSupport":"EnabledPerNamespaceOrPerPod"}`, "egressIPSupport")
	b.mustKubectl(t, "", "annotate", "namespace", b.ns, model.AnnotationEgressClients+"=projectcalico.org/name == '"+b.ns+"'")
	policy := func(rules string) {
		t.Helper()
		b.mustKubectl(t, `{apiVersion: projectcalico.org/v3, kind: EgressGatewayPolicy, metadata: {name: lab}, spec: {rules: [`+rules+`]}}`, "apply", "-f", "-")
	}
	t.Cleanup(func() {
		b.mustKubectl(t, "", "delete", "egressgatewaypolicies.projectcalico.org", "lab", "--ignore-not-found")
		b.mustKubectl(t, "", "annotate", "namespace", b.ns, model.AnnotationEgressClients+"-")
	})
	const port = 9331
	for i := 1; i <= 3; i++ {
		b.client(i).begin(t, "server", "--until-stdin-ends", "--name", "out", fmt.Sprintf("--who=%d", port))
	}
	leaves := func(name, node string) *corev1.Pod {
		p := b.idle(name, node, nil)
		p.Annotations[model.AnnotationEgressPolicy] = "lab"
		return p
	}
	gateway := func(name, node, label string) *corev1.Pod {
		p := b.server(name, node, map[string]string{"egress": label})
		p.Annotations[model.AnnotationEgressGateway] = "true"
		return p
	}
	pods := b.start(t, leaves("chooses1", "worker1"), leaves("chooses2", "worker2"), gateway("red", "cp", "red"), gateway("blue", "worker2", "blue"))
	first, second := pods[0], pods[1]
	// by says by whose addresses connections leave.
	by := func(from *place, client int) []string {
		t.Helper()
		r, err := from.tryDial(at(b.client(client).addr, port), 12, "--timeout", "2s")
		if err != nil || r.Failed > 0 {
			return []string{fmt.Sprintf("%d failed: %v", r.Failed, err)}
		}
		seen := slices.Clone(r.Seen)
		slices.Sort(seen)
		return slices.Compact(seen)
	}
	soon := func(what string, from *place, client int, want ...string) {
		t.Helper()
		slices.Sort(want)
		eventually(t, 30*time.Second, what, func() error {
			if got := by(from, client); !slices.Equal(got, want) {
				return fmt.Errorf("it leaves by %v, not %v", got, want)
			}
			return nil
		})
	}
	first.soon(t, at(client1Addr, port), false) // there is no such policy
	eventually(t, 0, "weir status says that there is no such policy", func() error { return statusHas(t, b.lab, "there is no EgressGatewayPolicy of this name") })

	policy(`{destination: {cidr: ` + client1Addr + `/32}, gateway: {selector: "egress == 'blue'"}}, {destination: {cidr: ` + client3Addr + `/32}}, {gateway: {selector: "egress == 'red'"}}`)
	soon("by the rule of its own", first, 1, worker2Addr)
	soon("by the rule for all", first, 2, cpAddr)
	soon("without a gateway", first, 3, worker1Addr)
	for to, want := range map[string]string{client1Addr: b.ns + "/blue", client2Addr: b.ns + "/red", client3Addr: "by no egress gateway"} {
		if out, code := b.weir(t, "why", b.ns+"/chooses1", at(to, port)); code != 0 || !strings.Contains(out, want) || !strings.Contains(out, "EgressGatewayPolicy lab for ") {
			t.Errorf("weir why for %s (%d) does not say %q:\n%s", to, code, want, out)
		}
	}
	for _, name := range []string{"/blue ", "/red "} {
		eventually(t, 0, "weir status names the gateway", func() error { return statusHas(t, b.lab, b.ns+name) })
	}

	policy(`{gateway: {selector: has(egress), maxNextHops: 1}}`)
	soonOne := ""
	eventually(t, 30*time.Second, "one of two gateways has all", func() error {
		got := by(first, 1)
		if len(got) != 1 || got[0] != cpAddr && got[0] != worker2Addr {
			return fmt.Errorf("it leaves by %v", got)
		}
		if other := by(first, 2); !slices.Equal(got, other) {
			return fmt.Errorf("it leaves by %v and %v", got, other)
		}
		soonOne = got[0]
		return nil
	})
	name, other := map[string]string{cpAddr: "red", worker2Addr: "blue"}[soonOne], map[string]string{cpAddr: worker2Addr, worker2Addr: cpAddr}[soonOne]
	b.mustKubectl(t, "", "label", "pod", "-n", b.ns, name, "egress-")
	soon("the other one takes its place", first, 1, other)
	b.mustKubectl(t, "", "label", "pod", "-n", b.ns, name, "egress="+name)
	soon("it is back", first, 1, soonOne)

	policy(`{gateway: {selector: has(egress)}}`)
	soon("by both", first, 1, cpAddr, worker2Addr)
	policy(`{gateway: {selector: has(egress)}, gatewayPreference: PreferNodeLocal}`)
	soon("by that of its node", second, 1, worker2Addr)
	soon("there is none on its node", first, 1, cpAddr, worker2Addr)
}

// statusHas is an error where `weir status` does not say so.
func statusHas(t *testing.T, l *lab, text string) error {
	t.Helper()
	if out, _ := l.weir(t, "status"); !strings.Contains(out, text) {
		return fmt.Errorf("it does not say %q:\n%s", text, out)
	}
	return nil
}
