// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/peerauth"
)

// The leader makes the authority for Hubble's API at agents, and the certificate of its clients,
// where they are installed, and nothing where they are not.
func TestKeepHubble(t *testing.T) {
	f := newFixture(t)
	if err := f.keepAuthorities(t.Context()); err != nil {
		t.Fatal(err)
	}
	if secrets, err := f.kube.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(secrets.Items) != 1 {
		t.Errorf("not installed: %v, %v", err, secrets.Items)
	}
	for _, name := range []string{peerauth.HubbleName, hubbleReaderSecret} {
		meta := metav1.ObjectMeta{Namespace: "kube-system", Name: name}
		if err := f.kube.Tracker().Add(&corev1.Secret{ObjectMeta: meta}); err != nil {
			t.Fatal(err)
		}
		if name == peerauth.HubbleName {
			if err := f.kube.Tracker().Add(&corev1.ConfigMap{ObjectMeta: meta}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.keepAuthorities(t.Context()); err != nil {
		t.Fatal(err)
	}
	have, err := f.kube.CoreV1().Secrets("kube-system").Get(t.Context(), hubbleReaderSecret, metav1.GetOptions{})
	if err != nil || len(have.Data["tls.crt"]) == 0 || len(have.Data["tls.key"]) == 0 {
		t.Errorf("the clients' certificate: %v, %d keys", err, len(have.Data))
	}
	bundle, err := f.kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), peerauth.HubbleName, metav1.GetOptions{})
	peers, err2 := f.kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), peerauth.ObjectName, metav1.GetOptions{})
	if err != nil || err2 != nil || bundle.Data["ca.crt"] == "" || bundle.Data["ca.crt"] == peers.Data["ca.crt"] {
		t.Errorf("published: %v, %v, %q", err, err2, bundle.Data)
	}
}
