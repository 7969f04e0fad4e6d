// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// user makes a user of the API server, and returns the kubeconfig file of it.
func (b *space) user(t *testing.T, name string) string {
	t.Helper()
	accounts := b.kube.CoreV1().ServiceAccounts(b.ns)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accounts.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["lab"] = &clientcmdapi.Cluster{Server: b.rest.Host, CertificateAuthorityData: b.rest.CAData}
	cfg.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	cfg.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "user"}
	cfg.CurrentContext = "lab"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestViewer asks agents with the rights of ClusterRole weir-viewer alone, and without them.
func TestViewer(t *testing.T) {
	b := sharedBase(t)
	viewer, nobody := b.user(t, "viewer"), b.user(t, "nobody")
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.ns}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "weir-viewer"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: b.ns, Name: "viewer"}}}
	if _, err := b.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.kube.RbacV1().ClusterRoleBindings().Delete(context.Background(), b.ns, metav1.DeleteOptions{})
	})
	// The kubelets give agents the certificates some time after the controller made them.
	eventually(t, 5*time.Minute, "a live status of all nodes, by the controller", func() error {
		out, code := b.weir(t, "--kubeconfig", viewer, "--verbose", "status", "--live")
		if code != 0 || strings.Count(out, "is asked by the controller") != len(nodes) || strings.Contains(out, "by exec") {
			return fmt.Errorf("exit code %d:\n%s", code, out)
		}
		return nil
	})
	who := at(b.srv2.addr, whoPort)
	out, code := b.weir(t, "--kubeconfig", viewer, "--verbose", "why", b.cli1.source(), who, "-n", b.ns)
	if code != 0 || !strings.Contains(out, "Node worker2") || strings.Contains(out, "by exec") {
		t.Errorf("why: exit code %d:\n%s", code, out)
	}
	w := b.monitor(t, "--kubeconfig", viewer, "--pod", b.ns+"/srv2")
	eventually(t, 0, "the verdicts", func() error {
		b.cli1.dial(t, who, 1)
		return w.find(" worker2 "+b.ns+"/cli1 → "+b.ns+"/srv2", "ALLOWED (no policy)")
	})
	if out, _ := b.weir(t, "--kubeconfig", viewer, "--verbose", "ipam", "check", "--live"); !strings.Contains(out, fmt.Sprintf(" allocations of %d nodes", len(nodes))) || strings.Contains(out, "by exec") {
		t.Errorf("ipam check --live:\n%s", out)
	}
	// Nothing else than looking.
	for _, args := range [][]string{{"exec", "-n", weirNamespace, "ds/weir-node", "--", "/weir", "version"}, {"delete", "pod", "-n", b.ns, "srv1"}, {"get", "secrets", "-n", weirNamespace}} {
		if out, err := b.kubectl("", append([]string{"--kubeconfig", viewer}, args...)...); err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("kubectl %q: %s %v", args, out, err)
		}
	}
	for _, args := range [][]string{{"why", b.cli1.addr, who}, {"monitor", "--node", "worker1"}} {
		out, code := b.weir(t, append([]string{"--kubeconfig", nobody}, args...)...)
		if code == 0 || !strings.Contains(out, "orbidden") && !strings.Contains(out, "not allowed to ask agents") {
			t.Errorf("nobody may %s: exit code %d:\n%s", args[0], code, out)
		}
	}
	if out, _ := b.weir(t, "--kubeconfig", nobody, "monitor", "--node", "worker1"); !strings.Contains(out, "weir-viewer") {
		t.Errorf("it is not said which right is missing:\n%s", out)
	}
}
