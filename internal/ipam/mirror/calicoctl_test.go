// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/ipam"
)

// calicoctlEnv names calicoctl of Calico 3.28.
const calicoctlEnv = "WEIR_CALICOCTL"

// TestCalicoctl runs calicoctl's commands about addresses against what is shown, with a real API
// server, as an administrator. The one version that can be pinned knows crd.projectcalico.org/v1
// alone, whose objects have the same fields: on the way the group gets its other name.
func TestCalicoctl(t *testing.T) {
	program := os.Getenv(calicoctlEnv)
	if program == "" {
		t.Skipf("%s is not set: it names calicoctl (make e2e-calicoctl)", calicoctlEnv)
	}
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		switch u.GetKind() {
		case "DaemonSet", "Deployment", "PodDisruptionBudget":
		default:
			s.Create(u)
		}
	}
	s.Create(apitest.Object("v1", "Node", "n1", nil))
	s.Create(apitest.Object("projectcalico.org/v3", "IPPool", "pods", map[string]any{"cidr": "10.244.0.0/16", "blockSize": int64(28)}))
	s.Create(apitest.Object("projectcalico.org/v3", "IPPool", "balancers", map[string]any{"cidr": "192.0.2.0/28", "blockSize": int64(30), "allowedUses": []any{"LoadBalancer"}}))
	s.Create(apitest.Object("projectcalico.org/v3", "ClusterInformation", "default", map[string]any{"datastoreReady": true, "clusterGUID": "abc"}))
	s.Create(apitest.Object("projectcalico.org/v3", "IPAMConfiguration", "default", map[string]any{"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": int64(0)}))
	agent, controller := s.As("system:serviceaccount:kube-system:weir-node", "n1"), s.As("system:serviceaccount:kube-system:weir-controller", "")
	from := &locked{allocations: allocations{blocks: []netip.Prefix{block4}, held: map[netip.Addr]string{}}}
	apitest.Eventually(t, time.Minute, "the block of weir.dev", func() error {
		_, err := agent.Dynamic.Resource(weirv1.IPAMBlocks).Create(t.Context(), apitest.Object("weir.dev/v1", "IPAMBlock", weirv1.BlockName(block4), map[string]any{"cidr": block4.String(), "node": "n1", "pool": "pods"}), metav1.CreateOptions{})
		return err
	})
	for i, a := range []string{"10.244.3.1", "10.244.3.2"} {
		from.records = append(from.records, ipam.Record{Address: netip.MustParseAddr(a), ContainerID: fmt.Sprint("c", i), Namespace: "default", Pod: fmt.Sprint("p", i), Time: time.Now().Add(-time.Hour)})
	}
	def := apitest.Object("v1", "ServiceAccount", "default", nil)
	def.SetNamespace("default")
	s.Create(def)
	pods := s.Clients.Kube.CoreV1().Pods("default")
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p0"}, Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	if err == nil {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.3.1", PodIPs: []corev1.PodIP{{IP: "10.244.3.1"}}}
		_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	m := New(agent.Dynamic, "n1", from, slog.New(slog.DiscardHandler))
	m.pace = 50 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	defer func() { stop(); <-ended }()
	balancer := apitest.Object("weir.dev/v1", "IPAMBlock", "192-0-2-0-30", map[string]any{"cidr": "192.0.2.0/30", "node": weirv1.LoadBalancers, "pool": "balancers",
		"allocations": []any{map[string]any{"address": "192.0.2.1", "service": "shop/web", "uid": "uid-1"}}})
	s.Create(balancer)
	apitest.Eventually(t, time.Minute, "the mirrors", func() error {
		have, err := s.Clients.Dynamic.Resource(weirv1.IPAMBlocks).Get(t.Context(), "192-0-2-0-30", metav1.GetOptions{})
		if err != nil {
			return err
		}
		b := balancerBlock("192.0.2.0/30", weirv1.Allocation{Address: "192.0.2.1", Service: "shop/web", UID: "uid-1"})
		b.UID = have.GetUID()
		if err := ShowBalancers(t.Context(), controller.Dynamic, []weirv1.IPAMBlock{b}); err != nil {
			return err
		}
		_, err = s.Clients.Dynamic.Resource(ipamv3.IPAMBlocks).Get(t.Context(), clientName(block4), metav1.GetOptions{})
		return err
	})
	kubeconfig := s.KubeconfigFor(renamed(t, s.Config))
	// run runs calicoctl, and wants these in what it says, however that is spaced.
	run := func(args string, want ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, strings.Fields(args)...)
		cmd.Env = append(os.Environ(), "DATASTORE_TYPE=kubernetes", "KUBECONFIG="+kubeconfig)
		out, err := cmd.CombinedOutput()
		said := strings.Join(strings.Fields(string(out)), " ")
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("calicoctl %s: %v\n%s\nwant %q", args, err, out, w)
			}
		}
	}
	pool, balancers := "| IP Pool | 10.244.0.0/16 | 65536 | 2 (0%)", "| IP Pool | 192.0.2.0/28 | 16 | 1 (6%)"
	run("ipam show", pool, balancers)
	run("ipam show --show-blocks", pool, balancers, "| Block | 10.244.3.0/28 | 16 | 2 (12%)", "| Block | 192.0.2.0/30 | 4 | 1 (25%)")
	run("ipam show --ip=10.244.3.2", "IP 10.244.3.2 is in use", "pod: p1", "namespace: default", "node: n1")
	run("ipam show --ip=10.244.3.3", "10.244.3.3 is not assigned")
	run("ipam show --ip=192.0.2.1", "IP 192.0.2.1 is in use", "service: web", "namespace: shop", "type: LoadBalancer")
	run("ipam check --show-problem-ips", "IPAM blocks record 3 allocations", "10.244.3.2 leaked", "Found 0 in-use IPs that are in active IP pools but have no corresponding IPAM allocation",
		"Found 0 handles with no matching IPs (and 2 handles with matches)", "Found 0 handles mentioned in blocks with no matching handle resource")
	run("ipam release --ip=10.244.3.2", "Successfully released IP address 10.244.3.2")
	apitest.Eventually(t, time.Minute, "the release", func() error {
		from.mu.Lock()
		defer from.mu.Unlock()
		if fmt.Sprint(from.released) != "[10.244.3.2]" {
			return fmt.Errorf("released %v", from.released)
		}
		return nil
	})
	run("ipam release --ip=192.0.2.1", "is forbidden", "written by Weir")
	run("ipam show --ip=192.0.2.1", "IP 192.0.2.1 is in use")
	run("get ippools", "balancers 192.0.2.0/28", "pods 10.244.0.0/16")
	file := filepath.Join(t.TempDir(), "set.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: office, labels: {a: b}}, spec: {nets: [198.51.100.0/24]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("apply -f "+file, "Successfully applied 1 'GlobalNetworkSet' resource(s)")
	set, err := s.Clients.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("globalnetworksets")).Get(t.Context(), "office", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets"); fmt.Sprint(nets) != "[198.51.100.0/24]" {
		t.Errorf("applied %v", set.Object)
	}
	run("get globalnetworkset office -o yaml", "198.51.100.0/24")
}

// renamed is the URL of the API server with the group projectcalico.org/v3 by the name
// crd.projectcalico.org/v1.
func renamed(t *testing.T, to *rest.Config) string {
	t.Helper()
	target, err := url.Parse(to.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(to)
	if err != nil {
		t.Fatal(err)
	}
	out := strings.NewReplacer("/apis/crd.projectcalico.org/v1/", "/apis/projectcalico.org/v3/", "/ipamconfigs", "/ipamconfigurations")
	in, back := strings.NewReplacer(`"crd.projectcalico.org/v1"`, `"projectcalico.org/v3"`, `"IPAMConfig"`, `"IPAMConfiguration"`),
		strings.NewReplacer(`"projectcalico.org/v3"`, `"crd.projectcalico.org/v1"`, `"IPAMConfiguration"`, `"IPAMConfig"`, `"IPAMConfigurationList"`, `"IPAMConfigList"`)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.URL.Path = out.Replace(r.Out.URL.Path)
		r.Out.Header.Del("Authorization")
		r.Out.Header.Del("Accept-Encoding")
		if r.In.Body != nil {
			body, _ := io.ReadAll(r.In.Body) // what is cut short the API server refuses
			text := in.Replace(string(body))
			r.Out.Body, r.Out.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		}
	}, ModifyResponse: func(r *http.Response) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		text := back.Replace(string(body))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte(text))), int64(len(text))
		r.Header.Set("Content-Length", fmt.Sprint(len(text)))
		return nil
	}}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}
