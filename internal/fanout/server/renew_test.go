// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/peerauth/trust"
)

// authorityOf is a cluster's authority with a clock, what it publishes in a folder, and a fan-out's
// certificate by it.
type authorityOf struct {
	t       *testing.T
	clock   atomic.Int64
	keeper  *peerauth.Keeper
	serving *peerauth.Serving
	folder  trust.Folder
}

func newAuthorityOf(t *testing.T) *authorityOf {
	t.Helper()
	name := metav1.ObjectMeta{Namespace: names.Namespace, Name: peerauth.ObjectName}
	kube := fake.NewClientset(&corev1.Secret{ObjectMeta: name}, &corev1.ConfigMap{ObjectMeta: name})
	x := &authorityOf{t: t, folder: trust.Folder(t.TempDir())}
	x.clock.Store(time.Now().UnixNano())
	x.keeper = &peerauth.Keeper{Kube: kube, Namespace: names.Namespace, Domain: names.Namespace + ".svc", Now: x.now}
	x.serving = &peerauth.Serving{Kube: kube, Namespace: names.Namespace, Name: names.ServerName, Log: slog.New(slog.DiscardHandler), Now: x.now}
	return x
}

func (x *authorityOf) now() time.Time { return time.Unix(0, x.clock.Load()) }

// renew does what the controller, the kubelet and the fan-out do from time to time.
func (x *authorityOf) renew() *tls.Certificate {
	x.t.Helper()
	bundle, err := x.keeper.Ensure(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(x.folder), "ca.crt"), bundle, 0o600); err != nil {
		x.t.Fatal(err)
	}
	if err := x.serving.Refresh(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	cert, err := x.serving.Config().GetCertificate(nil)
	if err != nil {
		x.t.Fatal(err)
	}
	return cert
}

// trusting is the configuration of an agent at the clock's time.
func (x *authorityOf) trusting() (*tls.Config, error) {
	conf, err := x.folder.Client(names.ServerName)
	if err == nil {
		conf.Time = x.now
	}
	return conf, err
}

// serial returns which certificate a new connection is served.
func (x *authorityOf) serial(addr string, conf *tls.Config) (string, error) {
	conf.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: conf}).DialContext(x.t.Context(), "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// TestStreamOutlivesCertificates holds that a stream goes on while the fan-out's certificate, and
// the authority that signs it, are renewed and the ones that it began with expire; that a new
// connection gets the new certificate; and that an agent which reads the bundle anew trusts it.
func TestStreamOutlivesCertificates(t *testing.T) {
	t.Parallel()
	x := newAuthorityOf(t)
	began := x.renew().Leaf
	c := fleet(3, 4)
	p := newPlaceWith(t, x.serving.Config(), began, nil)
	p.fill(c)
	before, err := x.trusting()
	if err != nil {
		t.Fatal(err)
	}
	a := newAgentTrusting(t, "n1", tokenOf("n1"), []string{p.addr}, x.trusting, 0)
	eventually(t, "the snapshot", func() bool { return a.has(t, c, "n1") })
	stream := p.only(t)
	seen := map[string]bool{began.SerialNumber.String(): true}
	authorities := map[string]bool{}
	for step := range 400 { // an authority counts for a year, a certificate for a day
		x.clock.Add(int64(24 * time.Hour * 4 / 10))
		now := x.renew().Leaf
		seen[now.SerialNumber.String()], authorities[string(now.AuthorityKeyId)] = true, true
		if step%40 > 0 {
			continue
		}
		conf, err := x.trusting()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := x.serial(p.addr, conf); err != nil || got != now.SerialNumber.String() {
			t.Fatalf("day %d: a new connection got %s, want %s: %v", step*4/10, got, now.SerialNumber, err)
		}
		pod := *c.Pods.Get(model.Name{Namespace: "a", Name: "pod-0-0"})
		pod.UID = fmt.Sprint("step ", step)
		change(c, pods(&pod), p)
		eventually(t, "a change on the stream", func() bool { return a.has(t, c, "n1") })
	}
	for ; x.now().Before(began.NotAfter.AddDate(1, 1, 0)); x.clock.Add(int64(10 * time.Hour)) {
		authorities[string(x.renew().Leaf.AuthorityKeyId)] = true
	}
	if len(seen) < 100 || len(authorities) < 2 {
		t.Errorf("%d certificates of %d authorities: nothing was renewed", len(seen), len(authorities))
	}
	if p.only(t) != stream {
		t.Error("the stream was not the same all along")
	}
	if _, err := x.serial(p.addr, before); err == nil {
		t.Error("who did not read the bundle for a year trusts the new certificate")
	}
	// The stream ends: the agent comes back with the bundle of today.
	stream.end(context.Canceled)
	eventually(t, "another stream", func() bool { f := p.first(); return f != nil && f != stream })
	pod := *c.Pods.Get(model.Name{Namespace: "a", Name: "pod-0-0"})
	pod.UID = "at last"
	change(c, pods(&pod), p)
	eventually(t, "a change on it", func() bool { return a.has(t, c, "n1") })
}

// first returns a follower, nil where there is none.
func (p *place) first() *follower {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	for _, f := range p.server.followers {
		return f
	}
	return nil
}

// only returns the one follower that there is.
func (p *place) only(t *testing.T) *follower {
	t.Helper()
	if n := len(p.server.Followers()); n != 1 {
		t.Fatalf("%d agents are served", n)
	}
	return p.first()
}
