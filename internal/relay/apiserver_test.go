// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/admission"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/controller"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/relay/live"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

const (
	agentUser      = "system:serviceaccount:kube-system:weir-node"
	controllerUser = "system:serviceaccount:kube-system:weir-controller"
	// relayAddr is where the controller is.
	relayAddr = "192.0.2.9"
	relayPort = 5474
)

// TestHostileLiveByAPIServer has a real API server hand questions on, with the rights that are
// installed and real tokens.
func TestHostileLiveByAPIServer(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	s := apitest.Start(t)
	installed(t, s, deploy.Defaults())
	own := s.As(controllerUser, "")
	c := controller.New(controller.Config{Kube: own.Kube, Dynamic: own.Dynamic, Log: slog.New(slog.DiscardHandler), Namespace: deploy.Namespace, Grace: time.Minute, Interval: time.Second})
	apitest.Eventually(t, 0, "the controller's work", func() error { return c.Reconcile(t.Context()) })
	serveRelay(t, own.Kube)
	n1 := agentOf(t, s, "n1", agentToken(t, s, "weir-node", "n1", tunnel.Audience))
	viewer, nobody := s.As("viewer", "").Kube, s.As("nobody", "").Kube
	bind(t, s, "viewer")
	go n1.answer(t, t.Context())
	get := func(kube kubernetes.Interface, node, question string) (string, error) {
		raw, err := kube.Discovery().RESTClient().Get().AbsPath(live.Path(node, question)).DoRaw(t.Context())
		return string(raw), err
	}
	apitest.Eventually(t, 0, "an answer", func() error {
		text, err := get(viewer, "n1", "/status")
		if err == nil && text != "status of n1" {
			err = errors.New(text)
		}
		return err
	})
	raw, err := viewer.Discovery().RESTClient().Post().AbsPath(live.Path("n1", "/why")).Body([]byte("body")).DoRaw(t.Context())
	if err != nil || string(raw) != "why of n1: body" {
		t.Errorf("why: %s %v", raw, err)
	}
	t.Run("rights", func(t *testing.T) {
		hostile.Record(t, "a user without the right asks the controller", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		for _, question := range []string{"/status", "/events", "/token", "/version"} {
			if text, err := get(nobody, "n1", question); !apierrors.IsForbidden(err) {
				t.Errorf("%s: %q %v", question, text, err)
			}
		}
		if text, err := get(viewer, "n1", "/token"); !apierrors.IsForbidden(err) {
			t.Errorf("a viewer has the agent's token: %q %v", text, err)
		}
		// What changes something has a role of its own, which allows nothing else.
		bindTo(t, s, "keys", live.KeysRole)
		keys := s.As("keys", "").Kube
		post := func(kube kubernetes.Interface) (string, error) {
			raw, err := kube.Discovery().RESTClient().Post().AbsPath(live.Path("n1", "/wireguardkey")).Body([]byte("body")).DoRaw(t.Context())
			return string(raw), err
		}
		for name, kube := range map[string]kubernetes.Interface{"nobody": nobody, "viewer": viewer} {
			if text, err := post(kube); !apierrors.IsForbidden(err) {
				t.Errorf("%s changes keys: %q %v", name, text, err)
			}
		}
		apitest.Eventually(t, 0, "who may change keys is answered", func() error {
			text, err := post(keys)
			if err == nil && text != "wireguardkey of n1: body" {
				err = errors.New(text)
			}
			return err
		})
		if text, err := get(keys, "n1", "/status"); !apierrors.IsForbidden(err) {
			t.Errorf("who may change keys reads what agents know: %q %v", text, err)
		}
	})
	t.Run("tokens", func(t *testing.T) {
		hostile.Record(t, "a pod, or a token that is not an agent's for the controller, answers for a node", hostile.Pod, hostile.ControlPlane, hostile.Both)
		for what, token := range map[string]string{
			"another audience":        agentToken(t, s, "weir-node", "n2", "https://kubernetes.default.svc"),
			"another service account": agentToken(t, s, "default", "n2", tunnel.Audience),
			"no pod":                  unboundToken(t, s),
			"nothing":                 "x",
		} {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			err := agentOf(t, s, "n2", token).once(ctx)
			cancel()
			if err == nil || !strings.Contains(err.Error(), "401") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if text, err := get(viewer, "n2", "/status"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("somebody answers for n2: %q %v", text, err)
		}
	})
	// A namespace is deleted while the group is served: nothing holds it up (the API server itself
	// has no controller for that here).
	lists, err := s.Clients.Kube.Discovery().ServerPreferredResources()
	if err != nil || len(lists) == 0 {
		t.Errorf("discovery: %v", err)
	}
}

// installed makes what is installed, without the programs, and two nodes.
func installed(t *testing.T, s *apitest.Server, o deploy.Options) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		var addr *netlink.Addr
		if addr, err = netlink.ParseAddr(relayAddr + "/32"); err == nil {
			err = netlink.AddrAdd(lo, addr)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	objects, err := deploy.Objects(o)
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
	for _, n := range []string{"n1", "n2"} {
		s.Create(apitest.Object("v1", "Node", n, nil))
	}
	def := apitest.Object("v1", "ServiceAccount", "default", nil)
	def.SetNamespace(deploy.Namespace)
	s.Create(def)
	port, name, tcp := int32(relayPort), "live", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "weir-controller-1", Labels: map[string]string{discoveryv1.LabelServiceName: "weir-controller"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{relayAddr}}}}
	if _, err := s.Clients.Kube.DiscoveryV1().EndpointSlices(deploy.Namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// serveRelay serves as the controller does.
func serveRelay(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	proxy := &peerauth.FrontProxy{Kube: kube, Log: log, Now: time.Now}
	serving := &peerauth.Serving{Kube: kube, Namespace: deploy.Namespace, Name: tunnel.ServerName, Log: log, Now: time.Now}
	apitest.Eventually(t, 0, "what the controller has to know", func() error {
		return errors.Join(proxy.Refresh(t.Context()), serving.Refresh(t.Context()))
	})
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", relayAddr, relayPort))
	if err != nil {
		t.Fatal(err)
	}
	r := New(Config{Kube: kube, Log: log, Proxy: proxy, Reviewer: peerauth.NewReviewer(kube, agentUser, tunnel.Audience), Admission: admission.Handler()})
	go r.Serve(t.Context(), l, serving.Config())
}

// agentToken is the token of a pod on a node.
func agentToken(t *testing.T, s *apitest.Server, account, node, audience string) string {
	t.Helper()
	pods := s.Clients.Kube.CoreV1().Pods(deploy.Namespace)
	var pod *corev1.Pod
	apitest.Eventually(t, 0, "a pod", func() (err error) {
		pod, err = pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
			Spec: corev1.PodSpec{ServiceAccountName: account, NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
		return err
	})
	return request(t, s, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience},
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}})
}

// unboundToken is one of the agents' service account that no pod has.
func unboundToken(t *testing.T, s *apitest.Server) string {
	return request(t, s, "weir-node", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{tunnel.Audience}}})
}

func request(t *testing.T, s *apitest.Server, account string, r *authenticationv1.TokenRequest) string {
	t.Helper()
	got, err := s.Clients.Kube.CoreV1().ServiceAccounts(deploy.Namespace).CreateToken(t.Context(), account, r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Token
}

// standIn is an agent.
type standIn struct {
	node, addr string
	folder     trust.Folder
	handler    http.Handler
}

// agentOf makes an agent with what the cluster publishes.
func agentOf(t *testing.T, s *apitest.Server, node, token string) *standIn {
	t.Helper()
	published, err := s.Clients.Kube.CoreV1().ConfigMaps(deploy.Namespace).Get(t.Context(), peerauth.ObjectName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return newStandIn(t, node, fmt.Sprintf("%s:%d", relayAddr, relayPort), published.Data[peerauth.BundleKey], token)
}

func newStandIn(t *testing.T, node, addr, bundle, token string) *standIn {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"ca.crt": bundle, "token": token} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &standIn{node: node, addr: addr, folder: trust.Folder(dir), handler: answers(node, trust.Folder(dir))}
}

// once connects once.
func (a *standIn) once(ctx context.Context) error {
	return tunnel.Controller().Answer(ctx, &net.Dialer{}, a.addr, a.folder, a.handler)
}

// answer connects again and again until ctx ends.
func (a *standIn) answer(t *testing.T, ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.once(ctx); err != nil && ctx.Err() == nil {
			t.Logf("agent of %s: %v", a.node, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// bind gives a user the role of viewers.
func bind(t *testing.T, s *apitest.Server, user string) {
	t.Helper()
	bindTo(t, s, user, live.Role)
}

func bindTo(t *testing.T, s *apitest.Server, user, role string) {
	t.Helper()
	_, err := s.Clients.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
