// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestIssuedCertificateVerifies(t *testing.T) {
	a, err := New("t")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Issue("system:node:cp", []string{"system:nodes"}, []string{"cp"}, []netip.Addr{netip.MustParseAddr("172.31.1.8")})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.CA().Cert) {
		t.Fatal("the authority's certificate is not PEM")
	}
	for _, host := range []string{"cp", "172.31.1.8"} {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("as server %s: %v", host, err)
		}
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "worker1", Roots: roots}); err == nil {
		t.Error("valid for a name that was not asked for")
	}
	other, err := New("other")
	if err != nil {
		t.Fatal(err)
	}
	foreign := x509.NewCertPool()
	foreign.AppendCertsFromPEM(other.CA().Cert)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: foreign}); err == nil {
		t.Error("another lab's authority accepts it")
	}
}

func TestKubeconfig(t *testing.T) {
	a, err := New("t")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Issue("admin", []string{"system:masters"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := a.Kubeconfig("https://172.31.1.8:6443", p)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://172.31.1.8:6443" || string(c.CertData) != string(p.Cert) || string(c.CAData) != string(a.CA().Cert) {
		t.Errorf("kubeconfig does not hold what was put in: host %s", c.Host)
	}
}
