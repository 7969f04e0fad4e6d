// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/test/ui/browser"
)

// servedPage runs `weir ui` on client1, and returns the address that it prints. That is client1's
// loopback: the same port of this machine's leads there.
func (b *base) servedPage(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	b.leads(t, l, at)
	ctx, cancel := context.WithCancel(context.Background())
	var said sync.WaitGroup
	c := b.command(ctx, "exec", "client1", "--", filepath.Join(b.bin, "weir"), "ui", "--listen", at)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	out, err := c.StdoutPipe()
	if err == nil {
		c.Stderr = c.Stdout
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		said.Wait()
		_ = c.Wait() // it was interrupted
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, found := strings.Cut(strings.TrimSpace(line), "The page is at ")
	if err != nil || !found || !strings.HasPrefix(address, "http://"+at+"/#token=") {
		t.Fatalf("weir ui: %q %v", line, err)
	}
	said.Go(func() { _, _ = io.Copy(io.Discard, out) })
	return address
}

// leads leads connections of this machine to an address of the lab until the test ends.
func (b *base) leads(t *testing.T, l net.Listener, to string) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			all.Go(func() { b.lead(ctx, c, to) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		all.Wait()
	})
}

// lead copies a connection to an address of client1's, and back.
func (b *base) lead(ctx context.Context, from net.Conn, to string) {
	defer from.Close()
	there, err := b.rest.Dial(ctx, "tcp", to)
	if err != nil {
		return // the browser says it
	}
	defer there.Close()
	defer context.AfterFunc(ctx, func() { from.Close(); there.Close() })()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, there) // one end of both ends both
		from.Close()
	})
	_, _ = io.Copy(there, from)
	there.Close()
	back.Wait()
}

// pageShows looks in a browser at what happens while flow records are on: who talks to whom and
// what was denied, each record with its rule, the policy at that rule, nodes, and why.
func pageShows(t *testing.T, b *base) {
	p := browser.Start(t).Open(t, b.servedPage(t), 1280, 800)
	has := func(what, expression string) {
		eventually(t, 0, what, func() error {
			b.cli1.dial(t, at(b.svc1, whoPort), 1)
			b.cli2.dial(t, at(b.srv1.addr, whoPort), 1, "--timeout", "100ms")
			var is bool
			if p.Eval("!!("+expression+")", &is); !is {
				return fmt.Errorf("the page says:\n%.600s", p.Text("main"))
			}
			return nil
		})
	}
	line := func(words ...string) string {
		all := make([]string, len(words))
		for i, w := range words {
			all[i] = fmt.Sprintf("e.innerText.includes(%q)", w)
		}
		return strings.Join(all, " && ")
	}
	has("what was denied on the map", `[...document.querySelectorAll(".edges tr")].some((e) => `+line(b.ns+"/cli2", b.ns+"/srv1", "denied")+`)`)
	has("the Service on the map", `[...document.querySelectorAll(".edges tr")].some((e) => `+line(b.ns+"/cli1", "svc "+b.ns+"/svc1")+`)`)
	p.Click(`nav a[href^="/flows"]`)
	p.Type("input[name=to]", b.ns+"/srv1")
	p.Click(".filters button")
	has("a record with its rule", `[...document.querySelectorAll(".rows .row")].some((e) => `+line(b.ns+"/cli1", "NetworkPolicy "+b.ns+"/recorded ingress[0]", b.ns+"/svc1", "worker1")+`)`)
	has("what policy denied", `[...document.querySelectorAll(".rows .row.denied")].some((e) => `+line(b.ns+"/cli2", "default-deny "+b.ns+"/recorded")+`)`)
	p.Click(".rows .row:not(.denied) a.verdict")
	p.Has(".rule.marked", "ingress[0]")
	p.Has(".rule.marked", "flow") // that it decided
	p.Click(`nav a[href^="/nodes"]`)
	p.Has("main", fmt.Sprintf("of %d nodes ready", len(nodes)))
	p.Has("main", "POLICY_INGRESS")
	p.Click(`nav a[href^="/why"]`)
	p.Type("input[name=source]", b.ns+"/cli2")
	p.Type("input[name=target]", "pod/"+b.ns+"/"+fmt.Sprintf("srv1:%d", whoPort))
	p.Click(".ask button")
	p.Has(".conclusion", "denied on node worker1 by default-deny "+b.ns+"/recorded ingress")
	p.Faultless()
}

// pageForAll opens the page that the cluster serves, with the certificate that the controller made:
// a user of the test's namespace sees its flows, one without rights nothing.
func pageForAll(t *testing.T, b *base) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	origin := "https://" + l.Addr().String()
	b.withStore(t)
	b.with(t, func(o *deploy.Options) { o.UI, o.UIOrigins = true, origin }, "weir-ui", "weir-ui-tls")
	services := b.kube.CoreV1().Services(weirNamespace)
	outside, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "weir-ui-"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
		Selector: map[string]string{"k8s-app": "weir-ui"}, Ports: []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt32(8443)}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = services.Delete(context.Background(), outside.Name, metav1.DeleteOptions{}) })
	b.leads(t, l, fmt.Sprintf("%s:%d", cpAddr, outside.Spec.Ports[0].NodePort))
	token := func(name string) string {
		accounts := b.kube.CoreV1().ServiceAccounts(b.ns)
		_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = accounts.Delete(context.Background(), name, metav1.DeleteOptions{}) })
		got, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status.Token
	}
	tenant, nobody := token("tenant"), token("stranger")
	b.mustKubectl(t, "", "-n", b.ns, "create", "rolebinding", "tenant", "--clusterrole=weir-flows-viewer", "--serviceaccount="+b.ns+":tenant")
	var cert *x509.Certificate
	eventually(t, 3*time.Minute, "the page's certificate, and its Deployment", func() error {
		secret, err := b.kube.CoreV1().Secrets(weirNamespace).Get(t.Context(), "weir-ui-tls", metav1.GetOptions{})
		if err != nil {
			return err
		}
		block, _ := pem.Decode(secret.Data["tls.crt"])
		if block == nil {
			return fmt.Errorf("there is none yet")
		}
		if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
			return err
		}
		d, err := b.kube.AppsV1().Deployments(weirNamespace).Get(t.Context(), "weir-ui", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas == 0 {
			err = fmt.Errorf("no replica is ready")
		}
		return err
	})
	chromium := browser.Start(t, cert)
	logIn := func(token string) *browser.Page {
		p := chromium.Open(t, origin+"/flows", 1280, 800)
		p.Has("main", "Log in")
		p.Type("input[name=token]", token)
		p.Click(".login button")
		return p
	}
	p := logIn("x" + tenant)
	p.Has("[role=alert]", "does not take this token")
	p = logIn(tenant)
	p.Has("header .user", "system:serviceaccount:"+b.ns+":tenant")
	eventually(t, 0, "flows of the user's namespace", func() error {
		b.cli1.dial(t, at(b.svc1, whoPort), 1)
		if text := p.Text(".rows"); !strings.Contains(text, b.ns+"/cli1") {
			return fmt.Errorf("the page says:\n%.600s", p.Text("main"))
		}
		return nil
	})
	p.Is(fmt.Sprintf(`[...document.querySelectorAll(".rows .row")].every((e) => e.innerText.includes(%q))`, b.ns+"/"))
	eventually(t, time.Minute, "records of the store", func() error {
		if text := p.Text(".sources"); !strings.Contains(text, "of the store of flow records") {
			return fmt.Errorf("the page says: %s", text)
		}
		return nil
	})
	p.Click(`nav a[href^="/nodes"]`)
	p.Has("main", "not allowed")
	p.Faultless()
	p.Click("button.logout")
	p.Has("main", "Log in")
	p = logIn(nobody)
	p.Has("main", "the verb list on flows in group live.weir.dev is needed")
}
