// SPDX-License-Identifier: Apache-2.0

//go:build lab

package migrate

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/nettest"
)

// deployments are a server, a client and a stranger on each node, which wait there while it is
// drained, and a DaemonSet. The policy lets clients ask servers; flannel does not enforce it.
func deployments(traffic string, nodes []string) string {
	var out strings.Builder
	out.WriteString(`
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers, namespace: shop}
spec:
  podSelector: {matchLabels: {role: server}}
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere, namespace: shop}
spec:
  selector: {matchLabels: {role: everywhere}}
  template:
    metadata: {labels: {role: everywhere}}
    spec:
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56", command: [sleep, infinity]}]
`)
	for _, node := range nodes {
		for role, command := range map[string]string{"server": "/t/traffic, server, --echo=7000, --who=7001", "client": "sleep, infinity", "stranger": "sleep, infinity"} {
			fmt.Fprintf(&out, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s-%[2]s, namespace: shop}
spec:
  selector: {matchLabels: {role: %[1]s, at: %[2]s}}
  template:
    metadata: {labels: {role: %[1]s, at: %[2]s}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56", command: [%[3]s], volumeMounts: [{name: t, mountPath: /t}]}]
      volumes: [{name: t, hostPath: {path: %[4]s}}]
`, role, node, command, filepath.Dir(traffic))
		}
		fmt.Fprintf(&out, `---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {selector: {role: server, at: %[1]s}, ports: [{name: echo, port: 7000}, {name: who, port: 7001}]}
`, node)
	}
	return out.String()
}

// servers are the addresses of servers' pods and Services, by "pod NODE" and "service NODE". It
// waits until all pods of the shop run, and checks that no address is given twice.
func (l *lab) servers(t *testing.T, nodes []string) map[string]string {
	t.Helper()
	for _, node := range nodes {
		for _, role := range []string{"server", "client", "stranger"} {
			l.must(t, "", "kubectl", "-n", "shop", "rollout", "status", "deployment/"+role+"-"+node, "--timeout=180s")
		}
	}
	l.must(t, "", "kubectl", "-n", "shop", "rollout", "status", "daemonset/everywhere", "--timeout=180s")
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(l.must(t, "", "kubectl", "get", "pods", "-A", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	out, seen := map[string]string{}, map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.DeletionTimestamp != nil {
			continue
		}
		if other := seen[p.Status.PodIP]; other != "" {
			t.Errorf("%s/%s and %s have %s", p.Namespace, p.Name, other, p.Status.PodIP)
		}
		seen[p.Status.PodIP] = p.Namespace + "/" + p.Name
		if p.Labels["role"] == "server" {
			out["pod "+p.Spec.NodeName] = p.Status.PodIP
		}
	}
	for _, node := range nodes {
		out["service "+node] = strings.TrimSpace(l.must(t, "", "kubectl", "-n", "shop", "get", "service", node, "-o", "jsonpath={.spec.clusterIP}"))
	}
	return out
}

// meet has all clients and strangers ask all servers. Policy is in force at servers of the nodes
// that have Weir.
func (l *lab) meet(t *testing.T, what string, nodes []string, weir map[string]bool) {
	t.Helper()
	addr := l.servers(t, nodes)
	var wg sync.WaitGroup
	for _, from := range nodes {
		wg.Go(func() {
			for _, to := range nodes {
				l.ask(t, what+": "+from, from, addr["pod "+to], weir[to])
				l.ask(t, what+": "+from, from, addr["service "+to], weir[to])
			}
		})
	}
	wg.Wait()
}

// ask has the client and the stranger of a node ask a server. Endpoints of a pod that has just
// started may not be everywhere yet.
func (l *lab) ask(t *testing.T, what, from, server string, denied bool) {
	t.Helper()
	ask := func(who string) error {
		_, err := l.try("", "kubectl", "-n", "shop", "exec", "deployment/"+who+"-"+from, "--", "/agnhost", "connect", server+":7001", "--timeout=2s")
		return err
	}
	err := ask("client")
	for range 4 {
		if err == nil {
			break
		}
		time.Sleep(time.Second)
		err = ask("client")
	}
	if err != nil {
		t.Errorf("%s: the client does not reach %s: %v", what, server, err)
	}
	if served := ask("stranger") == nil; served == denied {
		t.Errorf("%s: the stranger is served by %s: %v, its policy is in force: %v", what, server, served, denied)
	}
}

// between opens connections between the pods of nodes, directly and through Services.
func (l *lab) between(t *testing.T, nodes []string, addr map[string]string) *traffic {
	t.Helper()
	out := &traffic{since: time.Now()}
	for _, from := range nodes {
		for _, to := range nodes {
			for _, by := range []string{"pod ", "service "} {
				out.streams = append(out.streams, l.begin(t, from+" to "+by+to, "deployment/client-"+from, "stream", addr[by+to]+":7000"))
			}
		}
	}
	for _, s := range out.streams {
		s.first(t)
	}
	return out
}

// TestFromFlannel: with flannel's daemon and plugins at work, nodes change to Weir one by one by
// drain, one goes back and changes again. Meanwhile pods of all nodes reach each other, connections
// of nodes that are not in turn go on, and policy comes into force where Weir is.
func TestFromFlannel(t *testing.T) {
	l := newLabOf(t, "flannel+kube-proxy-iptables", "--workers", "2")
	program := trafficProgram(t)
	l.load(t)
	nodes := []string{"worker1", "worker2", "cp"}
	weir := map[string]bool{}
	l.must(t, deployments(program, nodes), "kubectl", "apply", "-f", "-")
	l.meet(t, "with flannel", nodes, weir)
	t.Log("\n" + l.must(t, "", "weir", "install", "--from", "flannel"))
	t.Log("\n" + l.must(t, "", "weir", "migrate", "--from", "flannel"))

	lost, before := 0, l.identities(t)
	step := func(node string, to bool) {
		t.Helper()
		what, args := node+" to Weir", []string{"weir", "migrate", "--from", "flannel", "--yes", "--node", node, "--apply"}
		if !to {
			what, args[len(args)-1] = node+" back", "--back"
		}
		var others []string
		for _, n := range nodes {
			if n != node {
				others = append(others, n)
			}
		}
		tr := l.between(t, others, l.servers(t, nodes))
		out, err := l.try("", args...)
		t.Logf("%s\n%s", what, out)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		lost += tr.check(t, what)
		weir[node] = to
		l.meet(t, what, nodes, weir)
	}
	for _, node := range nodes {
		step(node, true)
		if out, err := l.on(node, "sh", "-c", "iptables-save | grep -ci flannel; ip -br link | grep -cE '^(flannel|cni0)'; ls /etc/cni/net.d"); out != "0\n0\n10-flannel.conflist.before-weir\n10-weir.conflist\n" {
			t.Errorf("of flannel there is on %s (%v):\n%s", node, err, out)
		}
	}
	if out, err := l.try("", "weir", "migrate", "--from", "flannel", "--apply", "--yes"); err != nil || !strings.Contains(out, "No node is left") {
		t.Errorf("once more: %v\n%s", err, out)
	}
	step("worker1", false)
	if out, err := l.on("worker1", "ls", "/etc/cni/net.d"); out != "10-flannel.conflist\n" {
		t.Errorf("of Weir there is on worker1 (%v):\n%s", err, out)
	}
	l.guarded(t, "worker1")
	weir["worker1"] = true
	l.meet(t, "worker1 to Weir again", nodes, weir)
	t.Log("\n" + l.must(t, "", "weir", "install"))
	l.meet(t, "with Weir alone", nodes, weir)
	now, again := l.identities(t), 0
	for uid := range before {
		if !now[uid] {
			again++
		}
	}
	if again != len(before) {
		t.Errorf("%d of %d pods were made again, each of which had its interface from flannel", again, len(before))
	}
	nettest.Figure(t, "from flannel by drain: "+podsRestarted, float64(again))
	nettest.Figure(t, "from flannel by drain: "+connectionsLost+", of pods on nodes that are not in turn", float64(lost))
}

// guarded changes a node with a pod that nobody makes again, and one that a PodDisruptionBudget
// keeps: the first stops the change before anything is done, but with --force, the second for as
// long as it is kept, while other pods of the node are evicted.
func (l *lab) guarded(t *testing.T, node string) {
	t.Helper()
	l.must(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: shop}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56", command: [sleep, infinity]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: keep, namespace: shop}
spec: {minAvailable: 1, selector: {matchLabels: {role: client, at: %[1]s}}}
`, node), "kubectl", "apply", "-f", "-")
	l.must(t, "", "kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod/alone", "--timeout=90s")
	l.must(t, "", "kubectl", "-n", "shop", "wait", "--for=jsonpath={.status.currentHealthy}=1", "pdb/keep", "--timeout=60s")
	change := []string{"weir", "migrate", "--from", "flannel", "--yes", "--node", node, "--apply"}
	before := l.identities(t)
	if out, err := l.try("", change...); err == nil || !strings.Contains(err.Error(), "shop/alone") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("with a pod that nobody makes again (%v):\n%s", err, out)
	}
	for uid := range before {
		if !l.identities(t)[uid] {
			t.Error("pods are evicted before that is allowed")
			break
		}
	}
	change = append(change, "--force")
	if out, err := l.try("", append(change, "--timeout", "20s")...); err == nil || !strings.Contains(err.Error(), "may not be evicted yet") {
		t.Errorf("with a pod that is kept (%v):\n%s", err, out)
	}
	kept := l.must(t, "", "kubectl", "-n", "shop", "get", "pods", "--field-selector", "spec.nodeName="+node, "-o", "name")
	if !strings.Contains(kept, "pod/client-"+node) || strings.Contains(kept, "pod/server-"+node) || strings.Contains(kept, "pod/alone") {
		t.Errorf("while one pod is kept, of %s there are\n%s", node, kept)
	}
	l.must(t, "", "kubectl", "-n", "shop", "delete", "pdb", "keep")
	out, err := l.try("", change...)
	t.Logf("%s again, by force\n%s", node, out)
	if err != nil {
		t.Fatal(err)
	}
}

// identities are those of the pods that have a network of their own.
func (l *lab) identities(t *testing.T) map[string]bool {
	t.Helper()
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(l.must(t, "", "kubectl", "get", "pods", "-A", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for i := range pods.Items {
		if p := &pods.Items[i]; !p.Spec.HostNetwork {
			out[string(p.UID)] = true
		}
	}
	return out
}
