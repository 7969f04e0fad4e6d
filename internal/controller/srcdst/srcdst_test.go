// SPDX-License-Identifier: Apache-2.0

package srcdst

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/controller/srcdst/status"
)

// endpoint stands in for EC2's: it speaks the protocol that the SDK speaks (Query, XML).
type endpoint struct {
	t *testing.T

	mu     sync.Mutex
	addrs  map[string]string // primary address by instance; its interface is eni- and the instance
	checks map[string]bool   // by interface
	refuse bool
	asked  []string // Describe, or what was modified
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := r.ParseForm(); err != nil || !strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/ec2/aws4_request") {
		e.t.Errorf("%v: %v", r.Header, err)
	}
	switch action := r.Form.Get("Action"); {
	case e.refuse:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>not authorized</Message></Error></Errors></Response>`)
	case action == "DescribeNetworkInterfaces":
		e.asked = append(e.asked, "Describe")
		fmt.Fprint(w, `<DescribeNetworkInterfacesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><networkInterfaceSet>`)
		if r.Form.Get("Filter.1.Name") != "attachment.instance-id" || r.Form.Get("Filter.2.Name") != "attachment.device-index" || r.Form.Get("Filter.2.Value.1") != "0" {
			e.t.Errorf("the filters are %v", r.Form)
		}
		for i := 1; r.Form.Get(fmt.Sprintf("Filter.1.Value.%d", i)) != ""; i++ {
			id := r.Form.Get(fmt.Sprintf("Filter.1.Value.%d", i))
			addr, is := e.addrs[id]
			if !is {
				continue
			}
			for card, eni := range []string{"eni-" + id, "eni-card-" + id} { // of an instance with two network cards
				fmt.Fprintf(w, `<item><networkInterfaceId>%s</networkInterfaceId><privateIpAddress>%s</privateIpAddress><sourceDestCheck>%v</sourceDestCheck>`+
					`<attachment><instanceId>%s</instanceId><deviceIndex>0</deviceIndex><networkCardIndex>%d</networkCardIndex></attachment></item>`, eni, addr, e.checks[eni], id, card)
			}
		}
		fmt.Fprint(w, `</networkInterfaceSet></DescribeNetworkInterfacesResponse>`)
	case action == "ModifyNetworkInterfaceAttribute":
		id, to := r.Form.Get("NetworkInterfaceId"), r.Form.Get("SourceDestCheck.Value")
		e.asked = append(e.asked, id+" "+to)
		e.checks[id] = to == "true"
		fmt.Fprint(w, `<ModifyNetworkInterfaceAttributeResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><return>true</return></ModifyNetworkInterfaceAttributeResponse>`)
	default:
		e.t.Errorf("unexpected %q", action)
	}
}

func (e *endpoint) said() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.Sort(e.asked)
	out := strings.Join(e.asked, ", ")
	e.asked = nil
	return out
}

func node(name, provider, addr string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: provider},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}}}
}

var felix = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "felixconfigurations"}

// start returns a controller whose SDK finds the stand-in as it would find another endpoint of EC2.
func start(t *testing.T, e *endpoint, nodes ...runtime.Object) (*Controller, func(string)) {
	t.Helper()
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	for k, v := range map[string]string{"AWS_ENDPOINT_URL_EC2": server.URL, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_MAX_ATTEMPTS": "1"} {
		t.Setenv(k, v)
	}
	d := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{felix: "FelixConfigurationList"})
	nodes = append(nodes, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: status.Name}})
	c := New(Config{Kube: fake.NewClientset(nodes...), Dynamic: d, Log: slog.New(slog.DiscardHandler), Interval: time.Second, Connect: Connect})
	return c, func(value string) {
		t.Helper()
		_ = d.Resource(felix).Delete(t.Context(), "default", metav1.DeleteOptions{})
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration",
			"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"awsSrcDstCheck": value}}}
		if _, err := d.Resource(felix).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// says fails the test unless the words of `weir status` are these, and problems have these words.
func says(t *testing.T, c *Controller, what, inForce string, problems ...string) {
	t.Helper()
	s, err := status.Read(t.Context(), c.cfg.Kube)
	have, all := s.Words()
	if err != nil || have != inForce || len(all) != len(problems) {
		t.Errorf("%s: %q, %q, %v; want %q, %q", what, have, all, err, inForce, problems)
		return
	}
	for i, p := range problems {
		if !strings.Contains(all[i], p) {
			t.Errorf("%s: %q is not in %q", what, p, all[i])
		}
	}
}

func TestChecks(t *testing.T) {
	const a, b = "i-0123456789abcdef0", "i-0123456789abcdef1"
	e := &endpoint{t: t, addrs: map[string]string{a: "10.0.0.10", b: "10.0.0.20"}, checks: map[string]bool{"eni-" + a: true, "eni-" + b: true}}
	c, set := start(t, e, node("a", "aws:///eu-west-1a/"+a, "10.0.0.10"), node("b", "aws:///eu-west-1b/"+b, "10.0.0.20"),
		node("c", "kind://docker/c", "10.0.0.30"), node("d", "", "10.0.0.40"))
	now := time.Now()
	c.now = func() time.Time { return now }
	for _, step := range []struct {
		what, value, said string
		later             time.Duration
		inForce           string // of two nodes
	}{
		{"nothing is set", "", "", 0, ""},
		{"nothing is to be done", "DoNothing", "", 0, ""},
		{"switched off", "Disable", "Describe, eni-" + a + " false, eni-" + b + " false", 0, "Disable"},
		{"nothing changed", "Disable", "", 0, "Disable"},
		{"looked at again", "Disable", "Describe", again + time.Second, "Disable"},
		{"switched on", "Enable", "Describe, eni-" + a + " true, eni-" + b + " true", 0, "Enable"},
		{"left", "DoNothing", "", 0, ""},
		{"as it was", "Enable", "Describe", 0, "Enable"},
		{"not valid", "Perhaps", "", 0, ""},
	} {
		if now = now.Add(step.later); step.value != "" {
			set(step.value)
		}
		if err := c.Look(t.Context()); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if said := e.said(); said != step.said {
			t.Errorf("%s: %q, want %q", step.what, said, step.said)
		}
		if step.inForce != "" {
			step.inForce = "awsSrcDstCheck " + step.inForce + " on 2 nodes, 2 are no instances of EC2 (spec.providerID)"
		}
		says(t, c, step.what, step.inForce)
	}
}

// What a Node says of its instance is its kubelet's word.
func TestForeignInstances(t *testing.T) {
	const mine, other, twice, gone = "i-0123456789abcdef0", "i-0123456789abcdef1", "i-0123456789abcdef2", "i-0123456789abcdef3"
	e := &endpoint{t: t, addrs: map[string]string{mine: "10.0.0.10", other: "10.9.9.9", twice: "10.0.0.30"},
		checks: map[string]bool{"eni-" + mine: true, "eni-" + other: true, "eni-" + twice: true}}
	c, set := start(t, e, node("a", "aws:///eu-west-1a/"+mine, "10.0.0.10"), node("b", "aws:///eu-west-1a/"+other, "10.0.0.20"),
		node("c", "aws:///eu-west-1a/"+twice, "10.0.0.30"), node("d", "aws:///eu-west-1a/"+twice, "10.0.0.30"),
		node("e", "aws:///eu-west-1a/"+gone, "10.0.0.50"), node("f", "aws:///eu-west-1a/i-x&Filter.9=1", "10.0.0.60"))
	set("Disable")
	err := c.Look(t.Context())
	for _, want := range []string{"has not its address 10.9.9.9", "both name the instance " + twice, "no primary interface of the instance " + gone} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if said := e.said(); said != "Describe, eni-"+mine+" false" {
		t.Errorf("EC2 was told %q", said)
	}
	const begin, both = "awsSrcDstCheck Disable: node ", "both name the instance " + twice
	says(t, c, "foreign instances", "awsSrcDstCheck Disable on 1 nodes, 1 are no instances of EC2 (spec.providerID)",
		begin+"b: it names the instance "+other, begin+"c: Nodes c and d "+both, begin+"d: Nodes c and d "+both, begin+"e: EC2 knows no primary interface")
}

func TestRefused(t *testing.T) {
	const a = "i-0123456789abcdef0"
	e := &endpoint{t: t, addrs: map[string]string{a: "10.0.0.10"}, checks: map[string]bool{"eni-" + a: true}, refuse: true}
	c, set := start(t, e, node("a", "aws:///eu-west-1a/"+a, "10.0.0.10"))
	set("Disable")
	if err := c.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "UnauthorizedOperation") {
		t.Errorf("without rights: %v", err)
	}
	says(t, c, "without rights", "awsSrcDstCheck Disable on 0 nodes", "UnauthorizedOperation")
	e.mu.Lock()
	e.refuse = false
	e.mu.Unlock()
	if err := c.Look(t.Context()); err != nil || e.said() != "Describe, eni-"+a+" false" {
		t.Errorf("with rights again: %v", err)
	}
	says(t, c, "with rights again", "awsSrcDstCheck Disable on 1 nodes")
	c, set = start(t, e, node("a", "aws:///eu-west-1a/"+a, "10.0.0.10"))
	c.cfg.Connect = func(context.Context) (EC2, error) { return nil, errors.New("no region") }
	set("Disable")
	if err := c.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "no region") {
		t.Errorf("without a region: %v", err)
	}
	says(t, c, "without a region", "awsSrcDstCheck Disable on 0 nodes", "awsSrcDstCheck Disable: no region")
}

// Weir's image has no file with the authorities by which EC2's certificate is verified.
func TestRoots(t *testing.T) {
	const inImage = "WEIR_TEST_WITHOUT_ROOTS"
	if os.Getenv(inImage) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRoots$")
		cmd.Env = append(os.Environ(), inImage+"=1", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if roots, err := x509.SystemCertPool(); err != nil || roots.Equal(x509.NewCertPool()) {
		t.Errorf("there is no authority: %v", err)
	}
}
