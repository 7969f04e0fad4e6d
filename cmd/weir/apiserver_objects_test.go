// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/model"
)

// keepTierAndPool makes a tier and a pool as the controller keeps them: without one they must not
// stay for ever, nor hold the removal of their kinds up.
func keepTierAndPool(t *testing.T, s *apitest.Server) {
	t.Helper()
	pool := apitest.Object("projectcalico.org/v3", "IPPool", "kept", map[string]any{"cidr": "10.247.0.0/16"})
	pool.SetFinalizers([]string{deploy.PoolFinalizer})
	tier := apitest.Object("projectcalico.org/v3", "Tier", "kept", map[string]any{"order": int64(10)})
	tier.SetFinalizers([]string{deploy.TierFinalizer})
	s.Create(pool)
	s.Create(tier)
}

func testObjects(t *testing.T, s *apitest.Server, f *follower, kubeconfig string) {
	run := func(stdin string, args ...string) string {
		t.Helper()
		out, err := weir(t, kubeconfig, stdin, args...)
		if err != nil {
			t.Fatalf("weir %v: %v\n%s", args, err, out)
		}
		return out
	}
	run("", "patch", "felixconfiguration", "default", "--patch", `{"spec":{"bpfExternalServiceMode":"DSR","vxlanPort":70000,"notAField":1}}`)
	f.eventually(t, 2*time.Second, "the patched FelixConfiguration", func() error {
		c := f.configs["default"]
		if c == nil || c.Spec["bpfExternalServiceMode"] != "DSR" || fmt.Sprint(c.Spec["vxlanPort"]) != "70000" || c.Spec["notAField"] == nil {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if out, err := weir(t, kubeconfig, "", "patch", "felixconfig", "default", "--patch", `{"spec":{"bpfExternalServiceMode":"direct"}}`); err == nil ||
		!strings.Contains(err.Error(), "bpfExternalServiceMode") {
		t.Errorf("a mode that is none was taken: %v %s", err, out)
	}
	if out := run("", "get", "ippools"); !strings.Contains(out, "10.244.0.0/16") || !strings.Contains(out, "CIDR") {
		t.Errorf("get ippools:\n%s", out)
	}
	if out := run("", "get", "ippool", "default", "-o", "yaml"); !strings.Contains(out, "cidr: 10.244.0.0/16") {
		t.Errorf("get ippool -o yaml:\n%s", out)
	}
	const second = `
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: second}
spec: {cidr: 10.245.0.0/16, vxlanMode: Always, blockSize: 28}
`
	run(second, "create", "-f", "-")
	if _, err := weir(t, kubeconfig, second, "create", "-f", "-"); err == nil || !strings.Contains(err.Error(), "IPPool second") {
		t.Errorf("created twice: %v", err)
	}
	f.eventually(t, 2*time.Second, "the second pool", func() error {
		p := f.cluster.Pools["second"]
		if p == nil || p.VXLAN != model.EncapAlways || p.BlockBits != 28 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	for patch, says := range map[string]string{`{"spec":{"ipipMode":"Always"}}`: "not both", `{"spec":{"ipipMode":"sometimes"}}`: "ipipMode"} {
		if _, err := weir(t, kubeconfig, "", "patch", "ippool", "second", "--patch", patch); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s was taken, or refused for another reason: %v", patch, err)
		}
	}
	run(strings.ReplaceAll(second, "Always, block", "Never, block"), "replace", "-f", "-")
	run("", "label", "ippool", "second", "a=b")
	f.eventually(t, 2*time.Second, "the replaced pool", func() error {
		if p := f.cluster.Pools["second"]; p == nil || p.VXLAN != model.EncapNever {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	if _, err := weir(t, kubeconfig, "", "patch", "ippool", "second", "--patch", `{"spec":{"cidr":"10.246.0.0/16"}}`); err == nil || !strings.Contains(err.Error(), "keeps its cidr") {
		t.Errorf("the cidr of a pool was changed: %v", err)
	}
	run("", "delete", "ippool", "second")
	f.eventually(t, 2*time.Second, "the deleted pool", func() error {
		if f.cluster.Pools["second"] != nil || len(f.problems) > 0 {
			return fmt.Errorf("%v %v", f.cluster.Pools, f.problems)
		}
		return nil
	})
	// Ports and protocols as people write them.
	out := run(`
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: web}
spec:
  tier: default
  order: 10.5
  selector: app == "web"
  types: [Ingress]
  ingress:
  - action: Allow
    protocol: TCP
    source: {nets: [10.0.0.0/8]}
    destination: {ports: [80, "8000:8010", named]}
  - {action: Deny, protocol: 47}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db}
spec: {selector: all()}
`, "apply", "-f", "-")
	if strings.Contains(out, "not supported yet") {
		t.Errorf("apply of policies:\n%s", out)
	}
	f.eventually(t, 2*time.Second, "the policies", func() error {
		web := f.cluster.Policies[model.PolicyID{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "web"}}]
		db := f.cluster.Policies[model.PolicyID{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "default", Name: "db"}}]
		if web == nil || db == nil {
			return fmt.Errorf("%v; %v", f.cluster.Policies, f.problems)
		}
		return nil
	})
	if out := run("", "get", "networkpolicies", "-A"); !strings.Contains(out, "db") || !strings.Contains(out, "default") {
		t.Errorf("get networkpolicies -A:\n%s", out)
	}
	// What the API server cannot see of a policy, the command line says.
	odd := run("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: odd}\nspec: {selector: \"app = 'web'\"}\n", "apply", "-f", "-")
	odd += run("", "patch", "globalnetworkpolicy", "odd", "--patch", `{"spec": {"order": 3}}`)
	if strings.Count(odd, "warning: GlobalNetworkPolicy odd spec.selector") != 2 {
		t.Errorf("apply and patch of a policy whose selector cannot be read:\n%s", odd)
	}
	run("", "delete", "globalnetworkpolicy", "odd")
	// What other data planes' installers and manuals apply, in one go; kinds that have no effect
	// yet say so.
	out = run(`
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {asNumber: 64512, nodeToNodeMeshEnabled: true, serviceClusterIPs: [{cidr: 10.96.0.0/16}], ignoredInterfaces: [x]}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: rack}
spec: {peerIP: 192.0.2.1, asNumber: "64512.1"}
---
apiVersion: projectcalico.org/v3
kind: BGPFilter
metadata: {name: ours}
spec:
  exportV4: [{action: Accept, matchOperator: In, cidr: 10.244.0.0/16}]
  importV6:
  - action: Accept
    peerType: eBGP
    communities: {values: ["64512:1:2"]}
    asPathPrefix: [64512, "1.2"]
    priority: 7
    interface: eth0
    operations: [{addCommunity: {value: "64512:7"}}, {prependASPath: {prefix: [64512]}}, {setPriority: {value: 3}}]
---
apiVersion: projectcalico.org/v3
kind: EgressGatewayPolicy
metadata: {name: out}
spec:
  rules:
  - {description: local, destination: {cidr: 10.0.0.0/8}}
  - {gateway: {namespaceSelector: "a == 'b'", selector: has(c), maxNextHops: 2}, gatewayPreference: PreferNodeLocal}
---
apiVersion: projectcalico.org/v3
kind: Profile
metadata: {name: ours}
spec: {}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: platform}
spec: {order: 100}
---
apiVersion: projectcalico.org/v3
kind: IPReservation
metadata: {name: low}
spec: {reservedCIDRs: [10.244.0.0/28, 10.244.9.9]}
---
apiVersion: projectcalico.org/v3
kind: IPAMConfiguration
metadata: {name: default}
spec: {strictAffinity: true, maxBlocksPerHost: 4, autoAllocateBlocks: true}
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: node.worker}
spec: {bpfPSNATPorts: "20000:20100", natPortRange: "30000:31000", bpfAttachType: Netkit, programClusterRoutes: EnabledNoEncapOnly, bpfConntrackTimeouts: {tcpSynSent: 30s, tcpFinsSeen: Auto}}
`, "apply", "-f", "-")
	if strings.Count(out, "not supported yet") != 1 || !strings.Contains(out, "spec.ignoredInterfaces: is not in force yet") {
		t.Errorf("apply of what has no effect:\n%s", out)
	}
	if !strings.Contains(out, "spec.importV6[0].interface = \"eth0\": is not in force") {
		t.Errorf("apply of a filter:\n%s", out)
	}
	f.eventually(t, 2*time.Second, "the filter and the policy of egress gateways", func() error {
		if ours := f.cluster.BGPFilters["ours"]; ours == nil || len(ours.Export4) != 1 {
			return fmt.Errorf("%+v; %v", ours, f.problems)
		}
		if out := f.cluster.EgressPolicies["out"]; out == nil || len(out.Rules) != 3 || out.Rules[2].Most != 2 || !out.Rules[2].PreferLocal {
			return fmt.Errorf("%+v; %v", out, f.problems)
		}
		return nil
	})
	for rule, want := range map[string]string{
		"{action: Maybe}": "Unsupported value", "{action: Accept, cidr: 10.0.0.0/8}": "cidr and matchOperator must both be set",
		"{action: Accept, cidr: 'fd00::/8', matchOperator: In}": "should match", "{action: Accept, prefixLength: {min: 3}}": "cidr is required",
		"{action: Reject, operations: [{setPriority: {value: 3}}]}": "only be used with action Accept", "{action: Accept, operations: [{}]}": "exactly one operation",
		"{action: Accept, communities: {values: ['x']}}": "should match", "{action: Accept, peerType: both}": "Unsupported value",
	} {
		if out, err := weir(t, kubeconfig, "apiVersion: projectcalico.org/v3\nkind: BGPFilter\nmetadata: {name: bad}\nspec: {exportV4: ["+rule+"]}\n", "apply", "-f", "-"); err == nil || !strings.Contains(out+err.Error(), want) {
			t.Errorf("rule %s: %v, want %q\n%s", rule, err, want, out)
		}
	}
	for rule, want := range map[string]string{
		"{destination: {cidr: ten}}": "should match", "{gateway: {maxNextHops: -1}}": "greater than or equal to 0", "{gateway: {}, gatewayPreference: Near}": "Unsupported value",
		"{gatewayPreference: PreferNodeLocal}": "gatewayPreference needs a gateway", "{gateways: {}}": "field not declared in schema",
	} {
		if out, err := weir(t, kubeconfig, "apiVersion: projectcalico.org/v3\nkind: EgressGatewayPolicy\nmetadata: {name: bad}\nspec: {rules: ["+rule+"]}\n", "apply", "-f", "-"); err == nil || !strings.Contains(out+err.Error(), want) {
			t.Errorf("rule %s: %v, want %q\n%s", rule, err, want, out)
		}
	}
}
