// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/flows/ask"
	flowwire "github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/flows/wire/wiretest"
	"github.com/weir-net/weir/internal/flowstore"
	"github.com/weir-net/weir/internal/flowstore/answer"
	"github.com/weir-net/weir/internal/goldmane/api"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/hubble/api/observer"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/ui/metrics"
)

// cluster is an API server where tokens "token-NAME" count: of "all", who sees all flows, of "a",
// who sees those of namespace a, and of others, who see nothing; and a store with records of
// connections between namespaces.
type cluster struct {
	kube    *fake.Clientset
	guard   *access.Guard
	records *flowstore.Store
	store   *ask.Store
	gone    atomic.Bool // the tokens count no more
	next    uint64      // record's position at its node

	address string // where the API is
	roots   *x509.CertPool
	bundle  string // the file of roots
	clients *authority
}

// authority signs certificates of clients.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// newAuthority makes one, whose certificate is in a folder.
func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue signs a certificate for a usage.
func (a *authority) issue(usage x509.ExtKeyUsage, life time.Duration) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "whisker"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{usage}}, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	peers := metav1.ObjectMeta{Namespace: deploy.Namespace, Name: peerauth.ObjectName}
	c := &cluster{kube: fake.NewClientset(&corev1.Secret{ObjectMeta: peers}, &corev1.ConfigMap{ObjectMeta: peers}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "weir-ui-tls"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})}
	c.kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.Status.User.Username, r.Status.Authenticated = strings.CutPrefix(r.Spec.Token, "token-")
		r.Status.Authenticated = r.Status.Authenticated && !c.gone.Load()
		return true, r, nil
	})
	c.kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		r.Status.Allowed = r.Spec.User == "all" || r.Spec.User == r.Spec.ResourceAttributes.Namespace
		return true, r, nil
	})
	c.guard = access.New(c.kube)
	log := slog.New(slog.DiscardHandler)
	var err error
	c.records, err = flowstore.Open(flowstore.Options{Dir: filepath.Join(t.TempDir(), "store"), Age: time.Hour, Bytes: 1 << 30, Records: 1000, Every: time.Hour, Log: log, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&answer.Server{Store: c.records, Nodes: func() []string { return []string{"n1"} }, Age: time.Hour, Log: log})
	t.Cleanup(server.Close)
	c.store = &ask.Store{Ask: func(ctx context.Context, q wire.Question, out io.Writer) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+q.Path, nil)
		if err != nil {
			return err
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		_, err = io.Copy(out, resp.Body)
		return err
	}}
	c.take(t)
	for i, of := range [][2]string{{"a", "a"}, {"a", "b"}, {"b", "a"}, {"b", "c"}, {"c", "c"}} {
		c.record(t, of[0], of[1], time.Duration(i-10)*time.Minute)
	}
	return c
}

// record takes a record of a connection that ended some time from now.
func (c *cluster) record(t *testing.T, from, to string, in time.Duration) {
	r := connection(from, to)
	r.End = time.Now().Add(in)
	r.Start = r.End.Add(-time.Second)
	c.take(t, r)
}

// take takes records of n1's agent.
func (c *cluster) take(t *testing.T, records ...*flows.Flow) {
	t.Helper()
	if _, err := c.records.Take(&flowstore.Batch{Node: "n1", At: flowwire.Position{Boot: "x", Next: c.next}, Records: wiretest.Rows(t, "n1", records...)}); err != nil {
		t.Fatal(err)
	}
	c.next += uint64(len(records))
}

// serveAPIs serves the APIs as `weir ui serve` does, with a certificate of Weir's authority.
func (c *cluster) serveAPIs(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	keeper := &peerauth.Keeper{Kube: c.kube, Namespace: deploy.Namespace, Domain: deploy.Namespace + ".svc", Now: time.Now}
	bundle, err := keeper.Ensure(t.Context())
	if err = errors.Join(err, keeper.Certify(t.Context(), "weir-ui-tls", "weir-ui.kube-system.svc")); err != nil {
		t.Fatal(err)
	}
	secret, err := c.kube.CoreV1().Secrets(deploy.Namespace).Get(t.Context(), "weir-ui-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.bundle = filepath.Join(dir, "ca.crt")
	for file, text := range map[string][]byte{"tls.crt": secret.Data["tls.crt"], "tls.key": secret.Data["tls.key"], "ca.crt": bundle} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.roots = x509.NewCertPool()
	c.roots.AppendCertsFromPEM(bundle)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	c.clients = newAuthority(t, dir, "clients")
	s := &serving{certDir: dir, clientCA: filepath.Join(dir, "clients.crt")}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- serveAPIs(ctx, l, c.kube, &access.Calls{Guard: c.guard, Store: c.store}, metrics.New(func() int { return 0 }), s.tlsOfAPIs(slog.New(slog.DiscardHandler)))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestStoreByCLI: the hubble CLI as it is reads from the store of all nodes what its user may see.
func TestStoreByCLI(t *testing.T) {
	cli := os.Getenv("WEIR_HUBBLE")
	if cli == "" {
		t.Skip("NOT RUN: WEIR_HUBBLE is not set: hack/hubble.sh builds the hubble CLI")
	}
	t.Parallel()
	c := newCluster(t)
	c.serveAPIs(t)
	command := func(ctx context.Context, user string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, cli, append(args, "--server", "tls://"+c.address, "--tls-ca-cert-files", c.bundle, "--tls-server-name", "weir-ui.kube-system.svc",
			"--basic-auth-username", "x", "--basic-auth-password", "token-"+user)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		return cmd
	}
	run := func(user string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := command(ctx, user, args...).CombinedOutput()
		return string(out), err
	}
	const aa, ab, ba, bc, cc = "a/client-of-a -> a/server-of-a:80", "a/client-of-a -> b/server-of-b:80", "b/client-of-b -> a/server-of-a:80", "b/client-of-b -> c/server-of-c:80", "c/client-of-c -> c/server-of-c:80"
	for _, q := range []struct {
		user      string
		args      []string
		has, lack []string
	}{
		{"all", []string{"observe", "--all"}, []string{aa, ab, ba, bc, cc}, nil},
		{"all", []string{"observe", "--last", "2"}, []string{bc, cc}, []string{aa, ab, ba}},
		{"all", []string{"observe", "--first", "2"}, []string{aa, ab}, []string{ba, bc, cc}},
		{"all", []string{"observe", "--since", "8m30s"}, []string{ba, bc, cc}, []string{aa, ab}},
		{"all", []string{"observe", "--since", "1h", "--until", "8m30s"}, []string{aa, ab}, []string{ba, bc, cc}},
		{"all", []string{"observe", "--all", "--from-label", "of=b"}, []string{ba, bc}, []string{aa, ab, cc}},
		{"all", []string{"observe", "--all", "--verdict", "FORWARDED"}, nil, []string{aa}},
		{"all", []string{"list", "nodes"}, []string{"n1", "Connected"}, nil},
		{"all", []string{"list", "namespaces"}, []string{"a\n", "b\n", "c\n"}, nil},
		{"all", []string{"status"}, []string{"Ok", "Current/Max Flows: 5/5", "Connected Nodes: 1/1"}, nil},
		{"a", []string{"observe", "--all"}, []string{aa, ab, ba}, []string{bc, cc, "of-c"}},
		{"a", []string{"observe", "--last", "20", "-o", "json"}, []string{`"k8s:of=a"`, `"a/in"`}, []string{`of=b`, `"b/in"`, "of-c"}},
		{"a", []string{"observe", "--all", "--from-label", "of=b"}, nil, []string{"of-b", "of-c"}},
		{"a", []string{"observe", "--all", "--namespace", "c"}, nil, []string{"of-c"}},
		{"a", []string{"list", "namespaces"}, []string{"a\n", "b\n"}, []string{"c\n"}},
	} {
		out, err := run(q.user, q.args...)
		if err != nil {
			t.Errorf("%s: %q: %v: %s", q.user, q.args, err, out)
		}
		for _, text := range q.has {
			if !strings.Contains(strings.ReplaceAll(out, " (unknown)", ""), text) {
				t.Errorf("%s: %q: no %q:\n%s", q.user, q.args, text, out)
			}
		}
		for _, text := range q.lack {
			if strings.Contains(strings.ReplaceAll(out, " (unknown)", ""), text) {
				t.Errorf("%s: %q: %q:\n%s", q.user, q.args, text, out)
			}
		}
	}
	for _, q := range [][]string{{"nobody", "observe"}, {"a", "list", "nodes"}} {
		if out, err := run(q[0], q[1:]...); err == nil || !strings.Contains(out, "PermissionDenied") && !strings.Contains(out, "may list the flows") {
			t.Errorf("%q: %v: %s", q, err, out)
		}
	}

	// It follows, without what was told or is not the user's.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follow := command(ctx, "a", "observe", "--follow", "--last", "1")
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("it ended: %v", lines.Err())
		}
		return lines.Text()
	}
	if got := next(); !strings.Contains(got, "client-of-b") || !strings.Contains(got, "server-of-a") {
		t.Errorf("the last is %s", got)
	}
	c.record(t, "c", "c", -time.Second)
	c.record(t, "a", "c", -time.Second)
	if got := next(); !strings.Contains(got, "client-of-a") || !strings.Contains(got, "server-of-c") {
		t.Errorf("the next is %s", got)
	}
	cancel()
	if err := follow.Wait(); err == nil {
		t.Error("it ended by itself")
	}
}

// TestHostileHubbleOfStore: who has no token that counts, or whose rights do not suffice, reads
// nothing by any method of Hubble's API over the store, nor of Goldmane's; nor does who had one.
func TestHostileHubbleOfStore(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "somebody reads flow records by Hubble's API over the store without a token, or beyond the rights of the token's user", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := newCluster(t)
	c.serveAPIs(t)
	conn, err := grpc.NewClient("passthrough:///"+c.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: c.roots, ServerName: "weir-ui.kube-system.svc", MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	observe := func(ctx context.Context, in *observer.GetFlowsRequest) (all []*observer.GetFlowsResponse, err error) {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/observer.Observer/GetFlows")
		if err == nil {
			err = errors.Join(stream.SendMsg(in), stream.CloseSend())
		}
		for err == nil {
			r := &observer.GetFlowsResponse{}
			if err = stream.RecvMsg(r); err == nil {
				all = append(all, r)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return all, err
	}
	as := func(values ...string) context.Context {
		ctx := t.Context()
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
		}
		return ctx
	}
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for what, of := range map[string]struct {
		ctx  context.Context
		want codes.Code
	}{
		"no token":          {as(), codes.Unauthenticated},
		"a wrong one":       {as("Bearer wrong"), codes.Unauthenticated},
		"an empty one":      {as("Bearer "), codes.Unauthenticated},
		"another scheme":    {as("Digest token-all"), codes.Unauthenticated},
		"a wrong password":  {as(basic("all:wrong")), codes.Unauthenticated},
		"a token as name":   {as(basic("token-all:")), codes.Unauthenticated},
		"no base64":         {as("Basic !"), codes.Unauthenticated},
		"two":               {as("Bearer token-a", "Bearer token-all"), codes.Unauthenticated},
		"a user as header":  {metadata.AppendToOutgoingContext(as(), "impersonate-user", "all"), codes.Unauthenticated},
		"a user of nothing": {as("Bearer token-nobody"), codes.PermissionDenied},
	} {
		if all, err := observe(of.ctx, &observer.GetFlowsRequest{Number: 10}); status.Code(err) != of.want || len(all) > 0 {
			t.Errorf("%s: %v, %d flows", what, err, len(all))
		}
		for method, q := range map[string][2]any{
			"/observer.Observer/GetNodes": {&observer.GetNodesRequest{}, &observer.GetNodesResponse{}}, "/observer.Observer/GetNamespaces": {&observer.GetNamespacesRequest{}, &observer.GetNamespacesResponse{}},
			"/observer.Observer/ServerStatus": {&observer.ServerStatusRequest{}, &observer.ServerStatusResponse{}}, "/goldmane.Flows/List": {&api.FlowListRequest{}, &api.FlowListResult{}},
			"/goldmane.Flows/FilterHints": {&api.FilterHintsRequest{Type: api.FilterType_FilterTypeDestName}, &api.FilterHintsResult{}}, "/goldmane.Flows/Stream": {&api.FlowStreamRequest{StartTimeGte: -3600}, &api.FlowResult{}},
			"/goldmane.Statistics/List": {&api.StatisticsRequest{}, &api.StatisticsResult{}},
		} {
			if err := conn.Invoke(of.ctx, method, q[0], q[1]); status.Code(err) != of.want && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %s: %v", what, method, err)
			}
		}
	}
	for ctx, want := range map[context.Context]int{as("Bearer token-all"): 5, as(basic("x:token-all")): 5, as("Bearer token-a"): 3} {
		all, err := observe(ctx, &observer.GetFlowsRequest{})
		if err != nil || len(all) != want {
			t.Errorf("%v: %d flows", err, len(all))
		}
		if want == 3 && strings.Contains(fmt.Sprint(all), "of-c") {
			t.Error("the user of a sees what is between others")
		}
	}
	for user, want := range map[string]int{"all": 5, "a": 3} {
		list := &api.FlowListResult{}
		if err := conn.Invoke(as("Bearer token-"+user), "/goldmane.Flows/List", &api.FlowListRequest{}, list); err != nil || len(list.GetFlows()) != want {
			t.Errorf("Goldmane's flows of %s: %v, %d", user, err, len(list.GetFlows()))
		}
		text := fmt.Sprint(list)
		if shows := strings.Contains(text, "of-c") || strings.Contains(text, "of=b") || strings.Contains(text, `namespace:"b" name:"in"`) || strings.Contains(text, `namespace:"b"  name:"in"`); shows != (user == "all") {
			t.Errorf("Goldmane's flows of %s: %s", user, text)
		}
		hints := &api.FilterHintsResult{}
		err := conn.Invoke(as("Bearer token-"+user), "/goldmane.Flows/FilterHints", &api.FilterHintsRequest{Type: api.FilterType_FilterTypeDestNamespace}, hints)
		if err != nil || strings.Contains(fmt.Sprint(hints), `"c"`) != (user == "all") {
			t.Errorf("Goldmane's hints of %s: %v %v", user, err, hints)
		}
	}
	st := &observer.ServerStatusResponse{}
	if err := conn.Invoke(as("Bearer token-a"), "/observer.Observer/ServerStatus", &observer.ServerStatusRequest{}, st); err != nil || st.GetNumFlows() != 0 || st.GetNumConnectedNodes().GetValue() != 1 {
		t.Errorf("%v: %v", err, st)
	}
	// Who has a certificate for clients of the authority that is named needs no token.
	for what, q := range map[string]struct {
		cert  tls.Certificate
		holds bool
	}{
		"a client's":        {c.clients.issue(x509.ExtKeyUsageClientAuth, time.Hour), true},
		"a server's":        {c.clients.issue(x509.ExtKeyUsageServerAuth, time.Hour), false},
		"one that expired":  {c.clients.issue(x509.ExtKeyUsageClientAuth, -time.Hour), false},
		"another authority": {newAuthority(t, t.TempDir(), "clients").issue(x509.ExtKeyUsageClientAuth, time.Hour), false},
	} {
		conn, err := grpc.NewClient("passthrough:///"+c.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: c.roots, ServerName: "weir-ui.kube-system.svc", MinVersion: tls.VersionTLS13,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &q.cert, nil }})))
		if err != nil {
			t.Fatal(err)
		}
		list := &api.FlowListResult{}
		if err := conn.Invoke(t.Context(), "/goldmane.Flows/List", &api.FlowListRequest{}, list); (err == nil) != q.holds || q.holds != (len(list.GetFlows()) == 5) {
			t.Errorf("%s certificate: %v, %d flows", what, err, len(list.GetFlows()))
		}
		conn.Close()
	}
	// As many calls at a time as are allowed, and no more.
	ctx, cancel := context.WithCancel(as("Bearer token-a"))
	ended := make(chan error, 10)
	for range 10 {
		go func() {
			_, err := observe(ctx, &observer.GetFlowsRequest{Follow: true})
			ended <- err
		}()
	}
	for range 6 {
		if err := <-ended; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one call more: %v", err)
		}
	}
	cancel()
	for range 4 {
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("who follows: %v", err)
		}
	}
	if _, err := observe(as("Bearer token-a"), &observer.GetFlowsRequest{Number: 1_000_000}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a million: %v", err)
	}
	c.gone.Store(true)
	c.guard.Forget("token-all")
	if all, err := observe(as("Bearer token-all"), &observer.GetFlowsRequest{}); status.Code(err) != codes.Unauthenticated || len(all) > 0 {
		t.Errorf("a token that counts no more: %v, %d flows", err, len(all))
	}
}
