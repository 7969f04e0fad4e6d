// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	attack "github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// TestHostilePolicyTable has a tenant with 95 KB of NetworkPolicies on the node of a pod whose
// policy allows a few ports.
func TestHostilePolicyTable(t *testing.T) {
	playAttacks(t, []scenarioAttack{
		{name: "policies of 250 peers and 250 ports fill the policy table", actor: attack.Tenant, file: "hostile-policy-table", make: policyTable},
		{name: "a namespace's rules tell so many peers apart that the policy sets of others are refused", actor: attack.Tenant, file: "hostile-policy-classes", make: policyClasses},
	})
}

// policyTable are four policies of 250 peers and 250 ports, and two that took what was left of the
// table of policies.
func policyTable(t *testing.T) *scenario.Scenario {
	t.Helper()
	var b strings.Builder
	b.WriteString(`What a tenant asks for of the table of policies costs another one nothing.

-- objects.yaml --
apiVersion: v1
kind: Namespace
metadata: {name: attacker}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: victim, namespace: default}
spec: {podSelector: {matchLabels: {app: c}}, ingress: [{ports: [{port: 80}, {port: 82}, {port: 84}, {port: 86}, {port: 88}]}]}
`)
	begin := b.Len()
	for i, n := range [][2]int{{250, 250}, {250, 250}, {250, 250}, {250, 250}, {100, 110}, {0, 40}} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: attacker, labels: {app: p%d}}\nspec: {nodeName: w2, containers: [{name: c}]}\nstatus: {phase: Running, podIP: 10.244.2.%d, podIPs: [{ip: 10.244.2.%d}]}\n", i, i, 20+i, 20+i)
		fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p%d, namespace: attacker}\nspec: {podSelector: {matchLabels: {app: p%d}}, ingress: [{ports: [", i, i)
		for port := range n[1] {
			fmt.Fprintf(&b, "{port: %d},", 1001+2*port)
		}
		b.WriteString("]")
		for j := range n[0] {
			fmt.Fprintf(&b, "%s{ipBlock: {cidr: 198.18.%d.%d/32}}", map[bool]string{true: ", from: [", false: ", "}[j == 0], j>>7, j<<1&255)
		}
		b.WriteString(map[bool]string{true: "]}]}\n", false: "}]}\n"}[n[0] > 0])
	}
	t.Logf("%d bytes of objects", b.Len()-begin)
	b.WriteString(`-- run --
send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:80 S
arrives pod:default/c
send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:88 S
arrives pod:default/c
send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:81 S
drop w2 from_uplink POLICY_INGRESS default-deny default/victim
`)
	return hostileScenario(t, b.String())
}

// policyClasses is a policy of 700 networks alongside one that allows everybody on a hundred ports.
func policyClasses(t *testing.T) *scenario.Scenario {
	t.Helper()
	var b strings.Builder
	b.WriteString(`What a tenant tells apart costs another one nothing.

-- objects.yaml --
apiVersion: v1
kind: Namespace
metadata: {name: attacker}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: attacker, labels: {app: p}}
spec: {nodeName: w2, containers: [{name: c}]}
status: {phase: Running, podIP: 10.244.2.20, podIPs: [{ip: 10.244.2.20}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: victim, namespace: default}
spec: {podSelector: {matchLabels: {app: c}}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [`)
	for i := range 100 {
		fmt.Fprintf(&b, "{port: %d},", 80+2*i)
	}
	b.WriteString("]}]}\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: many, namespace: attacker}\nspec: {podSelector: {}, ingress: [")
	for i := range 700 {
		fmt.Fprintf(&b, "{from: [{ipBlock: {cidr: 198.18.%d.%d/32}}]},", i>>7, i<<1&255)
	}
	b.WriteString(`]}
-- run --
send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:80 S
arrives pod:default/c
send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:278 S
arrives pod:default/c
send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:81 S
drop w2 from_uplink POLICY_INGRESS default-deny default/victim
`)
	return hostileScenario(t, b.String())
}

// hostileScenario reads a scenario whose text is made.
func hostileScenario(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	files := fstest.MapFS{"hostile.txtar": {Data: []byte(text)}}
	clusters, err := fs.Glob(dir, "clusters/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range clusters {
		data, err := fs.ReadFile(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	s, err := scenario.Read(files, "hostile.txtar")
	if err != nil {
		t.Fatal(err)
	}
	return s
}
