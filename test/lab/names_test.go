// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/flows"
)

// TestDomainNames: a pod reaches what CoreDNS told it of the names of its policy, at once, and
// nothing else: by a ClusterNetworkPolicy, by a NetworkPolicy and by a network set of
// projectcalico.org. Flow records have the name, `weir why` says it.
func TestDomainNames(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	b.patchFelix(t, `{"flowLogsLocalReporter":"Enabled","flowLogsFlushInterval":"1s"}`, "flowLogsLocalReporter", "flowLogsFlushInterval")
	const port = 9321
	for _, i := range []int{1, 2} {
		b.client(i).begin(t, "server", "--until-stdin-ends", "--name", fmt.Sprint("out", i), fmt.Sprintf("--who=%d", port))
	}
	// Names of headless Services lead to machines outside of the cluster.
	for name, addr := range map[string]string{"partner": client1Addr, "other": client2Addr} {
		b.mustKubectl(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q}, "spec": {"clusterIP": "None", "ports": [{"port": %d}]}}`, name, port), "apply", "-n", b.ns, "-f", "-")
		b.mustKubectl(t, fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": %q, "labels": {"kubernetes.io/service-name": %q}}, "addressType": "IPv4", "ports": [{"port": %d}], "endpoints": [{"addresses": [%q]}]}`,
			name, name, port, addr), "apply", "-n", b.ns, "-f", "-")
		t.Cleanup(func() { b.mustKubectl(t, "", "delete", "service", "-n", b.ns, name) })
	}
	const kubeSystem = "kubernetes.io/metadata.name: kube-system"
	b.mustKubectl(t, fmt.Sprintf(`
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}, podSelector: {matchLabels: {pod: cli1}}}}
  egress:
  - {action: Accept, to: [{namespaces: {matchLabels: {%[2]s}}}]}
  - {action: Accept, to: [{domainNames: [partner.%[1]s.svc.cluster.local]}], protocols: [{tcp: {destinationPort: {number: %[3]d}}}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0]}]}
`, b.ns, kubeSystem, port), "apply", "-f", "-")
	t.Cleanup(func() { b.mustKubectl(t, "", "delete", "clusternetworkpolicies.policy.networking.k8s.io", "names") })
	b.mustKubectl(t, fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: names}
spec:
  selector: pod == 'cli2'
  types: [Egress]
  egress:
  - {action: Allow, destination: {namespaceSelector: kubernetes.io/metadata.name == 'kube-system'}}
  - {action: Allow, protocol: TCP, destination: {domains: ["partner.*.svc.cluster.local"], ports: [%[1]d]}}
  - {action: Allow, protocol: TCP, destination: {selector: feed == 'others', ports: [%[1]d]}}
---
apiVersion: projectcalico.org/v3
kind: NetworkSet
metadata: {name: others, labels: {feed: others}}
spec: {allowedEgressDomains: ["other.*"]}
`, port), "apply", "-n", b.ns, "-f", "-")
	t.Cleanup(func() {
		b.mustKubectl(t, "", "delete", "-n", b.ns, "networkpolicies.projectcalico.org/names", "networksets.projectcalico.org/others")
	})
	partner, other := at(client1Addr, port), at(client2Addr, port)
	for _, from := range []*place{b.cli1, b.cli2} {
		from.soon(t, partner, false) // the policies are in force, and it has not asked
		from.soon(t, other, false)
	}
	asks := func(from *place, name string) {
		t.Helper()
		eventually(t, 0, from.pod+" asks for "+name, func() error {
			out, err := b.kubectl("", "exec", "-n", b.ns, from.pod, "--", "dig", "+short", "+tries=1", name+"."+b.ns+".svc.cluster.local")
			if err == nil && strings.TrimSpace(out) == "" {
				err = fmt.Errorf("no address")
			}
			return err
		})
	}
	for _, c := range []struct {
		from         *place
		name, to     string
		works        bool
		rule, domain string
	}{
		{b.cli1, "other", other, false, "", ""},
		{b.cli1, "partner", partner, true, "ClusterNetworkPolicy names egress[1]", "partner." + b.ns + ".svc.cluster.local"},
		{b.cli2, "partner", partner, true, "NetworkPolicy.projectcalico.org " + b.ns + "/names egress[1]", "partner.*.svc.cluster.local"},
		{b.cli2, "other", other, true, "NetworkPolicy.projectcalico.org " + b.ns + "/names egress[2]", "other.*"},
	} {
		asks(c.from, c.name)
		if r := c.from.dial(t, c.to, 1, "--timeout", "1s"); (r.Failed == 0) != c.works {
			t.Errorf("%v to %s, which it asked for: %v", c.from, c.name, r)
		}
		if !c.works {
			continue
		}
		if out, code := b.weir(t, "why", b.ns+"/"+c.from.pod, c.to); code != 0 || !strings.Contains(out, c.rule) || !strings.Contains(out, "DNS told the pod that a name of "+c.domain) {
			t.Errorf("weir why (%d) does not name %s by %s:\n%s", code, c.rule, c.domain, out)
		}
		eventually(t, 0, "a record with the name", func() error {
			all, err := b.flows(t, "--from", b.ns+"/"+c.from.pod, "--since", "1m")
			for _, f := range all {
				if f.Verdict == flows.Allowed && at(f.Destination.Address.String(), int32(f.Destination.Port)) == c.to && f.Egress != nil && f.Egress.Domain == c.domain && strings.HasPrefix(f.Egress.Rule.String(), c.rule) {
					return nil
				}
			}
			if len(all) == 0 {
				return fmt.Errorf("no record: %v", err)
			}
			last, _ := json.Marshal(all[len(all)-1])
			return fmt.Errorf("none of %d records, the last of which is %s", len(all), last)
		})
	}
}
