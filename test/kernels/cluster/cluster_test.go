// SPDX-License-Identifier: Apache-2.0

//go:build lab

package cluster

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

var (
	labFlag = flag.String("lab", "weir", "name of the lab")
	binFlag = flag.String("program", "weir-lab", "weir-lab, which has Weir's programs beside it")
)

// Addresses of every lab.
const (
	nodeAddr   = "172.31.1.8"
	clientAddr = "172.31.1.55"
)

// patience is long enough for a processor that takes ten times as long.
const patience = 15 * time.Minute

func TestEBPF(t *testing.T) { try(t, "eBPF", "true") }

func TestNFT(t *testing.T) { try(t, "nftables", "false") }

// objects are a server, what leads to it, and two clients, which the scheduler places.
const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NAMESPACE}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: POD, namespace: NAMESPACE, labels: {app: POD}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: c, image: "registry.k8s.io/e2e-test-images/agnhost:2.56", args: [netexec, --http-port=8080]}]
`

const policy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: NAMESPACE}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 8080}]}]
`

// try has the node take a data plane and looks at what it does.
func try(t *testing.T, plane, bpf string) {
	must(t, "", "exec", "cp", "--", "weir", "patch", "felixconfiguration", "default", "--patch", `{"spec":{"bpfEnabled":`+bpf+`}}`)
	await.Within(t, patience, "the data plane "+plane, func() error {
		got, err := lab("", "kubectl", "get", "nodestatuses.weir.dev", "cp", "-o", "jsonpath={.status.dataplane}")
		if err == nil && got != plane {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
	must(t, "", "kubectl", "-n", "kube-system", "rollout", "status", "daemonset/weir-node", "--timeout", patience.String())

	namespace := "on-" + strings.ToLower(plane)
	manifest := objects
	for _, name := range []string{"web", "client", "stranger"} {
		manifest += strings.ReplaceAll(pod, "POD", name)
	}
	in := func(manifest string) string { return strings.ReplaceAll(manifest, "NAMESPACE", namespace) }
	must(t, in(manifest), "kubectl", "apply", "-f", "-")
	t.Cleanup(func() { must(t, "", "kubectl", "delete", "namespace", namespace, "--wait=false") })
	must(t, "", "kubectl", "-n", namespace, "wait", "pods", "--all", "--for=condition=Ready", "--timeout", patience.String())
	field := func(object, path string) string {
		return must(t, "", "kubectl", "-n", namespace, "get", object, "-o", "jsonpath={"+path+"}")
	}
	service, server := field("service/web", ".spec.clusterIP"), field("pod/web", ".status.podIP")
	client, stranger := field("pod/client", ".status.podIP"), field("pod/stranger", ".status.podIP")
	outside := nodeAddr + ":" + field("service/web", ".spec.ports[0].nodePort")

	from := func(pod string) []string { return []string{"kubectl", "-n", namespace, "exec", pod, "--"} }
	all := []struct {
		from       []string
		to, source string
		allowed    bool // by the policy
	}{
		{from("client"), server + ":8080", client, true},
		{from("client"), service, client, true},
		{from("client"), "web." + namespace + ".svc.cluster.local", client, true},
		{from("stranger"), server + ":8080", stranger, false},
		{from("stranger"), service, stranger, false},
		// The node itself reaches its pods whatever policy says; Services by the programs of its
		// sockets.
		{[]string{"exec", "cp", "--"}, service, nodeAddr, true},
		{[]string{"exec", "client1", "--"}, outside, clientAddr, false},
	}
	for _, c := range all {
		await.Within(t, patience, fmt.Sprintf("%v to %s", c.from, c.to), func() error { return sees(c.from, c.to, c.source) })
	}
	must(t, in(policy), "kubectl", "apply", "-f", "-")
	for _, c := range all {
		await.Within(t, patience, fmt.Sprintf("%v to %s with the policy", c.from, c.to), func() error {
			err := sees(c.from, c.to, c.source)
			switch {
			case c.allowed:
				return err
			case err == nil:
				return errors.New("it is answered")
			case !errors.Is(err, errNoAnswer):
				return err
			}
			return nil
		})
	}
	if out, err := lab("", "exec", "cp", "--", "weir", "status"); err != nil {
		t.Errorf("weir status: %v\n%s", err, out)
	}
}

var errNoAnswer = errors.New("no answer")

// sees asks a server from where it is asked.
func sees(from []string, to, source string) error {
	out, err := lab("", from[0], slices.Concat(from[1:], []string{"curl", "-sS", "--connect-timeout", "5", "http://" + to + "/clientip"})...)
	if err != nil && (strings.Contains(err.Error(), "exit code 28") || strings.Contains(err.Error(), "exit status 28")) {
		return errNoAnswer
	}
	if err != nil {
		return err
	}
	got, err := netip.ParseAddrPort(out)
	if err == nil && got.Addr().String() != source {
		err = fmt.Errorf("the server sees %s, not %s", got.Addr(), source)
	}
	return err
}

// lab runs a command of weir-lab.
func lab(stdin string, verb string, args ...string) (string, error) {
	cmd := exec.Command(*binFlag, append([]string{verb, "--name", *labFlag}, args...)...)
	var errs strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", verb, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

func must(t *testing.T, stdin string, verb string, args ...string) string {
	t.Helper()
	out, err := lab(stdin, verb, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
