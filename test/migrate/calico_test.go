// SPDX-License-Identifier: Apache-2.0

//go:build lab

package migrate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/deploy"
)

var (
	binFlag = flag.String("bin", "../../bin", "folder with Weir's programs and weir-lab")
	labFlag = flag.String("lab", "", "use this lab (weir-lab up --proxy calico+kube-proxy-iptables), and leave it")
)

// lab is one with Calico.
type lab struct{ program, name string }

func newLab(t *testing.T, args ...string) *lab {
	t.Helper()
	return newLabOf(t, "calico+kube-proxy-iptables", args...)
}

func newLabOf(t *testing.T, proxy string, args ...string) *lab {
	t.Helper()
	bin, err := filepath.Abs(*binFlag)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{program: filepath.Join(bin, "weir-lab"), name: *labFlag}
	if l.name != "" {
		return l
	}
	l.name = fmt.Sprintf("weir-mig-%d", os.Getpid()%1000000)
	up := exec.Command(l.program, append([]string{"--name", l.name, "up", "--proxy", proxy}, args...)...)
	up.Stdout, up.Stderr = os.Stdout, os.Stderr
	t.Cleanup(func() {
		if out, err := exec.Command(l.program, "--name", l.name, "down").CombinedOutput(); err != nil {
			t.Errorf("remove the lab: %v\n%s", err, out)
		}
	})
	if err := up.Run(); err != nil {
		t.Fatalf("bring the lab up: %v", err)
	}
	return l
}

// try runs a program in the control-plane node.
func (l *lab) try(stdin string, args ...string) (string, error) {
	cmd := exec.Command(l.program, append([]string{"--name", l.name, "exec", "cp", "--"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func (l *lab) must(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := l.try(stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// shop is a server whose policy, in Calico's own objects, allows one of two clients, and a set of
// networks in which neither is.
const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata: {name: default.web, namespace: shop}
spec:
  selector: app == 'web'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, source: {selector: role == 'client'}, destination: {ports: [8080]}}
  - {action: Allow, protocol: TCP, source: {selector: role == 'partner'}, destination: {ports: [8080]}}
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkSet
metadata:
  name: partners
  annotations: {projectcalico.org/metadata: '{"labels":{"role":"partner"}}'}
spec: {nets: [198.51.100.0/24]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: worker1
  containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56", args: [netexec, --http-port=8080]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {role: client}}
spec:
  nodeName: cp
  containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56"}]
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: shop}
spec:
  nodeName: cp
  containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56"}]
`

// enforced waits until the client is served, and the stranger is not.
func (l *lab) enforced(t *testing.T, server string) {
	t.Helper()
	var err error
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(time.Second) {
		if _, err = l.try("", "kubectl", "-n", "shop", "exec", "client", "--", "/agnhost", "connect", server, "--timeout=3s"); err != nil {
			continue
		}
		if _, open := l.try("", "kubectl", "-n", "shop", "exec", "stranger", "--", "/agnhost", "connect", server, "--timeout=3s"); open != nil {
			return
		}
		err = fmt.Errorf("the stranger is served")
	}
	t.Fatalf("Calico's policy is not in force: %v", err)
}

// TestPlanFromCalico: with Felix and Calico's plugins at work, the plan has the blocks in which the
// pods' addresses are, and what it prints as Calico's objects is what Weir's definitions and
// admission policies take.
func TestPlanFromCalico(t *testing.T) {
	l := newLab(t, "--workers", "1")
	l.must(t, shop, "kubectl", "apply", "-f", "-")
	l.must(t, "", "kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s")
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(l.must(t, "", "kubectl", "get", "pods", "-A", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	server := ""
	for _, p := range pods.Items {
		if p.Namespace == "shop" && p.Name == "web" {
			server = p.Status.PodIP + ":8080"
		}
	}
	l.enforced(t, server)

	plan := l.must(t, "", "weir", "migrate", "--from", "calico")
	t.Log("\n" + plan)
	for _, want := range []string{"Calico v3.28.5", "Pod shop/web, metadata.ownerReferences: has no controller", "1 FelixConfiguration", "1 GlobalNetworkSet", "1 IPPool", "1 NetworkPolicy"} {
		if !strings.Contains(plan, want) {
			t.Errorf("%q is missing in the plan", want)
		}
	}
	blocks := map[string][]netip.Prefix{}
	for line := range strings.Lines(plan) {
		if f := strings.Fields(line); len(f) == 4 && (f[0] == "cp" || f[0] == "worker1") {
			for text := range strings.SplitSeq(f[2], ",") {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					t.Fatalf("%v in %q", err, line)
				}
				blocks[f[0]] = append(blocks[f[0]], p)
			}
		}
	}
	seen := 0
	for _, p := range pods.Items {
		if p.Spec.HostNetwork {
			continue
		}
		seen++
		in := false
		for _, b := range blocks[p.Spec.NodeName] {
			in = in || b.Contains(netip.MustParseAddr(p.Status.PodIP))
		}
		if !in {
			t.Errorf("pod %s/%s has %s, which is in none of the blocks %v of %s", p.Namespace, p.Name, p.Status.PodIP, blocks[p.Spec.NodeName], p.Spec.NodeName)
		}
	}
	if seen < 3 {
		t.Errorf("%d pods were looked at", seen)
	}

	l.accepts(t)
	l.enforced(t, server)
}

// accepts stores what is printed as Calico's objects under Weir's definitions.
func (l *lab) accepts(t *testing.T) {
	t.Helper()
	manifests, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, u := range manifests {
		switch u.GetKind() {
		case "CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			raw, err := yaml.Marshal(u.Object)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&text, "---\n%s", raw)
		}
	}
	l.must(t, text.String(), "kubectl", "apply", "--server-side", "-f", "-")
	l.must(t, "", "kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	objects := l.must(t, "", "weir", "migrate", "--from", "calico", "-o", "yaml")
	l.must(t, objects, "kubectl", "apply", "--validate=strict", "-f", "-")
	for _, c := range [][2]string{
		{"networkpolicies.projectcalico.org/default.web", "app == 'web'"},
		{"globalnetworksets.projectcalico.org/partners", "partner"},
		{"ippools.projectcalico.org/default-ipv4-ippool", "10.244.0.0/16"},
		{"felixconfigurations.projectcalico.org/default", `"bpfEnabled": false`},
	} {
		if got := l.must(t, "", "kubectl", "-n", "shop", "get", c[0], "-o", "json"); !strings.Contains(got, c[1]) {
			t.Errorf("%s is stored without %s:\n%s", c[0], c[1], got)
		}
	}
}
