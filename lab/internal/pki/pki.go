// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificates, keys and kubeconfigs of a lab. Nothing it
// makes is valid outside the lab that it was made for: each lab has its own
// authority, whose key never leaves the lab's state directory.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"

	clientcmd "k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const validity = 2 * 365 * 24 * time.Hour

// Authority signs the certificates of one lab.
type Authority struct {
	cert    *x509.Certificate
	certPEM []byte
	key     crypto.Signer
	keyPEM  []byte
}

// Pair is a certificate and its key, PEM-encoded.
type Pair struct {
	Cert, Key []byte
}

// New makes an authority.
func New(lab string) (*Authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	t := template("weir-lab-" + lab)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the lab's authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the lab's authority: %w", err)
	}
	return &Authority{cert: cert, certPEM: encode("CERTIFICATE", der), key: key, keyPEM: keyPEM}, nil
}

// CA is the authority's own certificate and key.
func (a *Authority) CA() Pair { return Pair{Cert: a.certPEM, Key: a.keyPEM} }

// Issue makes a certificate for servers and clients alike.
func (a *Authority) Issue(commonName string, organizations []string, names []string, addrs []netip.Addr) (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	t := template(commonName)
	t.Subject.Organization = organizations
	t.DNSNames = names
	for _, ip := range addrs {
		t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", commonName, err)
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: keyPEM}, nil
}

// Kubeconfig renders a self-contained kubeconfig for the API server at a URL.
func (a *Authority) Kubeconfig(server string, p Pair) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["lab"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.certPEM}
	c.AuthInfos["user"] = &clientcmdapi.AuthInfo{ClientCertificateData: p.Cert, ClientKeyData: p.Key}
	c.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "user"}
	c.CurrentContext = "lab"
	out, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("encode a kubeconfig: %w", err)
	}
	return out, nil
}

// ServiceAccountKey makes the key pair that signs service account tokens. Cert
// holds the public key.
func ServiceAccountKey() (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("encode the service account key: %w", err)
	}
	return Pair{Cert: encode("PUBLIC KEY", pub), Key: keyPEM}, nil
}

func template(commonName string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system's random source never fails on Linux
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
	}
}

func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	// SEC 1, which every Kubernetes component reads.
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
