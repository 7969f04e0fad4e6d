// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/export"
)

// certificates makes a folder with an authority, and a certificate of it for 127.0.0.1 and clients.
func certificates(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	make := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate, []byte) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by, parent = key, template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return key, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	until := time.Now().Add(time.Hour)
	caKey, ca, caPEM := make(&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	key, _, certPEM := make(&x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, ca, caKey)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"ca.crt": caPEM, "tls.crt": certPEM, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// collector is one as OpenTelemetry's: it returns its address, and what it got.
func collector(t *testing.T, folder string, answer func() ([]byte, error)) (addr string, got chan *logspb.LogsData) {
	t.Helper()
	got = make(chan *logspb.LogsData, 10)
	var options []grpc.ServerOption
	if folder != "" {
		cfg, err := export.TLS(folder, "")
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: cfg.Certificates, ClientCAs: cfg.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert})))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "opentelemetry.proto.collector.logs.v1.LogsService", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Export",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := &logspb.LogsData{}
			if err := decode(in); err != nil {
				return nil, err
			}
			text, err := answer()
			if err != nil {
				return nil, err
			}
			got <- in
			out := &emptypb.Empty{}
			out.ProtoReflect().SetUnknown(text)
			return out, nil
		}}}}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }() // it ends with Stop
	t.Cleanup(s.Stop)
	return l.Addr().String(), got
}

var record = &flows.Flow{Start: time.Unix(90, 0), End: time.Unix(100, 500), Node: "n1", Verdict: flows.Denied, Reason: "POLICY_INGRESS", Protocol: "tcp",
	Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Port: 40000, Namespace: "a", Pod: "cli-1", Workload: "Deployment cli", Labels: map[string]string{"app": "cli"}},
	Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80}, Rule: &events.Rule{Kind: "NetworkPolicy", Name: "b/p", Tier: "default"}, SNAT: true, Sent: flows.Counters{Packets: 3, Bytes: 180}}

// A collector gets records as log records over TLS, to which both sides show certificates.
func TestSend(t *testing.T) {
	t.Parallel()
	folder := certificates(t)
	addr, got := collector(t, folder, func() ([]byte, error) { return nil, nil })
	s, err := New("https://"+addr, folder, "v9")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other := *record
	other.Node, other.Verdict, other.Rule = "n2", flows.Allowed, nil
	if err := s.Send(t.Context(), []*flows.Flow{record, &other, record}); err != nil {
		t.Fatal(err)
	}
	data := <-got
	if len(data.GetResourceLogs()) != 2 {
		t.Fatalf("%v", data)
	}
	text := func(of any) string { return strings.ReplaceAll(of.(interface{ String() string }).String(), "  ", " ") }
	for i, want := range []struct {
		node     string
		n        int
		severity logspb.SeverityNumber
	}{{"n1", 2, logspb.SeverityNumber_SEVERITY_NUMBER_WARN}, {"n2", 1, logspb.SeverityNumber_SEVERITY_NUMBER_INFO}} {
		of := data.GetResourceLogs()[i]
		logs := of.GetScopeLogs()[0].GetLogRecords()
		if !strings.Contains(text(of.GetResource()), want.node) || !strings.Contains(text(of.GetResource()), "v9") || len(logs) != want.n || logs[0].GetSeverityNumber() != want.severity {
			t.Errorf("%v", of)
		}
	}
	r := data.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords()[0]
	attributes := map[string]string{}
	for _, a := range r.GetAttributes() {
		attributes[a.GetKey()] = text(a.GetValue())
	}
	for key, want := range map[string]string{"source.address": `"10.0.0.1"`, "source.port": "int_value:40000", "source.k8s.pod.name": `"cli-1"`, "source.k8s.pod.label": `"cli"`, "destination.port": "int_value:80",
		"network.transport": `"tcp"`, "network.type": `"ipv4"`, "weir.flow.verdict": `"denied"`, "weir.flow.reason": `"POLICY_INGRESS"`, "weir.flow.policy.name": `"b/p"`, "weir.flow.snat": "bool_value:true",
		"weir.flow.sent.bytes": "int_value:180"} {
		if !strings.Contains(attributes[key], want) {
			t.Errorf("%s is %s, want %s", key, attributes[key], want)
		}
	}
	if r.GetTimeUnixNano() != 100_000_000_500 || r.GetEventName() != EventName || r.GetBody().GetStringValue() != record.String() {
		t.Errorf("%v", r)
	}
	if _, has := attributes["destination.k8s.pod.name"]; has {
		t.Error("an end that is no pod has the name of one")
	}
}

// Who is not the collector gets nothing: a server that no authority of the folder has signed, and
// one without TLS.
func TestOthers(t *testing.T) {
	t.Parallel()
	mine := certificates(t)
	for name, folder := range map[string]string{"of another authority": certificates(t), "plain": ""} {
		addr, got := collector(t, folder, func() ([]byte, error) { return nil, nil })
		s, err := New("https://"+addr, mine, "")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		err = s.Send(t.Context(), []*flows.Flow{record})
		var refused *export.Refused
		if err == nil || errors.As(err, &refused) || len(got) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("https://c", filepath.Join(mine, "ca.crt"), ""); err == nil {
		t.Error("a folder that is a file is taken")
	}
}

// What a collector refuses is not sent again, what it has no time for is.
func TestRefusals(t *testing.T) {
	t.Parallel()
	var text []byte
	var failure error
	addr, got := collector(t, "", func() ([]byte, error) { return text, failure })
	s, err := New("http://"+addr, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	partial := func(n uint64, why string) []byte {
		var p []byte
		p = protowire.AppendVarint(protowire.AppendTag(p, 1, protowire.VarintType), n)
		p = protowire.AppendString(protowire.AppendTag(p, 2, protowire.BytesType), why)
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), p)
	}
	for name, c := range map[string]struct {
		text    []byte
		failure error
		refused int
		again   bool
	}{
		"all taken":         {},
		"a warning":         {text: partial(0, "slow down")},
		"some refused":      {text: partial(2, "too old"), refused: 2},
		"below 0":           {text: partial(1<<63, "odd")},
		"of later versions": {text: []byte{0x12, 0x01, 0x00}},
		"all refused":       {failure: status.Error(codes.InvalidArgument, "no"), refused: 3},
		"busy":              {failure: status.Error(codes.ResourceExhausted, "later"), again: true},
		"away":              {failure: status.Error(codes.Unavailable, "later"), again: true},
		"not set up":        {failure: status.Error(codes.Unauthenticated, "who?"), again: true},
	} {
		text, failure = c.text, c.failure
		err := s.Send(t.Context(), []*flows.Flow{record, record, record})
		var refused *export.Refused
		is := errors.As(err, &refused)
		if is != (c.refused > 0) || is && refused.Records != c.refused || c.again != (err != nil && !is) {
			t.Errorf("%s: %v", name, err)
		}
		if c.failure == nil {
			<-got
		}
	}
}
