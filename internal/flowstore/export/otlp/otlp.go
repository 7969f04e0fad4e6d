// SPDX-License-Identifier: Apache-2.0

// Package otlp sends flow records to an OpenTelemetry collector: as log records by OTLP over gRPC,
// one a record, grouped by the node that made it. Attributes have the names of OpenTelemetry's
// semantic conventions where there are some. The connection has TLS unless its address says http.
package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/export"
)

// The schemes of addresses, and their port.
const (
	Secure = "https"
	Plain  = "http"
	Port   = "4317"
)

// method is of the collector's logs service. Its request has the fields of logspb.LogsData; of its
// answer rejected reads what counts. The generated client would bring a gateway to HTTP besides.
const method = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

// Sender implements export.Sender.
type Sender struct {
	conn    *grpc.ClientConn
	version string
}

// New returns a sender to a collector; folder has certificates, as export.TLS reads them.
func New(to, folder, version string) (*Sender, error) {
	addr, err := export.ParseAddress(to, Port, Secure, Plain)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if addr.Scheme == Secure {
		if _, err := export.TLS(folder, addr.Host); err != nil {
			return nil, err
		}
		creds = &renewed{TransportCredentials: credentials.NewTLS(&tls.Config{ServerName: addr.Host}), folder: folder, server: addr.Host}
	}
	conn, err := grpc.NewClient("dns:///"+addr.HostPort(), grpc.WithTransportCredentials(creds), grpc.WithUserAgent("weir-flows/"+version))
	if err != nil {
		return nil, err
	}
	return &Sender{conn: conn, version: version}, nil
}

// renewed reads the certificates for each connection.
type renewed struct {
	credentials.TransportCredentials
	folder, server string
}

func (r *renewed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := export.TLS(r.folder, r.server)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

func (r *renewed) Clone() credentials.TransportCredentials {
	return &renewed{TransportCredentials: r.TransportCredentials.Clone(), folder: r.folder, server: r.server}
}

// Close implements export.Sender.
func (s *Sender) Close() error { return s.conn.Close() }

// Send implements export.Sender. What the protocol says is worth another try is an error that is.
func (s *Sender) Send(ctx context.Context, records []*flows.Flow) error {
	answer := &emptypb.Empty{} // what it does not know it keeps as it came
	err := s.conn.Invoke(ctx, method, Logs(records, s.version, time.Now()), answer)
	switch code := status.Code(err); {
	case err == nil:
		return rejected(answer.ProtoReflect().GetUnknown())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case code == codes.Unavailable, code == codes.ResourceExhausted, code == codes.DeadlineExceeded, code == codes.Canceled, code == codes.Aborted, code == codes.OutOfRange, code == codes.DataLoss:
		return err
	// These are of how the two are set up, which people mend while records wait.
	case code == codes.Unauthenticated, code == codes.PermissionDenied, code == codes.Unimplemented:
		return err
	}
	return &export.Refused{Records: len(records), Why: err}
}

// rejected reads ExportLogsServiceResponse: partial_success = 1 of rejected_log_records = 1 and
// error_message = 2.
func rejected(b []byte) error {
	partial := field(b, 1, protowire.BytesType)
	n, _ := protowire.ConsumeVarint(field(partial, 1, protowire.VarintType))
	if int64(n) <= 0 { // a message alone is a warning
		return nil
	}
	return &export.Refused{Records: int(min(n, 1<<31-1)), Why: fmt.Errorf("the collector says: %q", field(partial, 2, protowire.BytesType))}
}

// field is the first field of a number: its bytes, or the varint as it is encoded.
func field(b []byte, number protowire.Number, kind protowire.Type) []byte {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(num, typ, b)
		if size < 0 {
			return nil
		}
		if num == number && typ == kind {
			if typ == protowire.BytesType {
				of, _ := protowire.ConsumeBytes(b)
				return of
			}
			return b[:size]
		}
		b = b[size:]
	}
	return nil
}

// attributes are shared by records, which have the same few texts.
type attributes []*commonpb.KeyValue

func (a *attributes) text(key, value string) {
	if value != "" {
		*a = append(*a, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}})
	}
}

func (a *attributes) number(key string, value uint64) {
	*a = append(*a, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: int64(value)}}})
}

func (a *attributes) flag(key string, value bool) {
	if value {
		*a = append(*a, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: true}}})
	}
}

func (a *attributes) peer(end string, p *flows.Peer) {
	if p.Address.IsValid() {
		a.text(end+".address", p.Address.String())
	}
	if p.Port != 0 {
		a.number(end+".port", uint64(p.Port))
	}
	a.text(end+".k8s.namespace.name", p.Namespace)
	a.text(end+".k8s.pod.name", p.Pod)
	a.text(end+".k8s.workload.name", p.Workload)
	a.text(end+".k8s.node.name", p.Node)
	if len(p.Labels) > 0 {
		of := &commonpb.KeyValueList{}
		for k, v := range p.Labels {
			of.Values = append(of.Values, &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}})
		}
		*a = append(*a, &commonpb.KeyValue{Key: end + ".k8s.pod.label", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: of}}})
	}
}

// scope is who makes the log records; it is the same for all.
var scope = sync.OnceValue(func() *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: "github.com/weir-net/weir/internal/flows"}
})

// EventName is of each log record.
const EventName = "weir.flow"

// Logs are flow records as log records.
func Logs(records []*flows.Flow, version string, now time.Time) *logspb.LogsData {
	out := &logspb.LogsData{}
	nodes := map[string]*logspb.ScopeLogs{}
	for _, f := range records {
		of := nodes[f.Node]
		if of == nil {
			of = &logspb.ScopeLogs{Scope: scope()}
			nodes[f.Node] = of
			var a attributes
			a.text("service.name", "weir")
			a.text("service.version", version)
			a.text("k8s.node.name", f.Node)
			out.ResourceLogs = append(out.ResourceLogs, &logspb.ResourceLogs{Resource: &resourcepb.Resource{Attributes: a}, ScopeLogs: []*logspb.ScopeLogs{of}})
		}
		of.LogRecords = append(of.LogRecords, logOf(f, now))
	}
	return out
}

func logOf(f *flows.Flow, now time.Time) *logspb.LogRecord {
	r := &logspb.LogRecord{TimeUnixNano: uint64(f.End.UnixNano()), ObservedTimeUnixNano: uint64(now.UnixNano()), EventName: EventName,
		SeverityNumber: logspb.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO",
		Body: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: f.String()}}}
	if f.Verdict != flows.Allowed {
		r.SeverityNumber, r.SeverityText = logspb.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	a := make(attributes, 0, 32)
	a.text("weir.flow.verdict", f.Verdict)
	a.text("weir.flow.reason", f.Reason)
	if f.Rule != nil {
		a.text("weir.flow.rule", f.Rule.String())
		a.text("weir.flow.policy.kind", f.Rule.Kind)
		a.text("weir.flow.policy.name", f.Rule.Name)
		a.text("weir.flow.policy.tier", f.Rule.Tier)
	}
	if !f.Start.IsZero() {
		a.text("weir.flow.start", f.Start.UTC().Format(time.RFC3339Nano))
	}
	a.text("weir.flow.ended", f.Ended)
	a.text("network.transport", f.Protocol)
	a.text("weir.flow.icmp", f.ICMP)
	if from := f.Source.Address.Unmap(); from.Is4() {
		a.text("network.type", "ipv4")
	} else if from.Is6() {
		a.text("network.type", "ipv6")
	}
	a.peer("source", &f.Source)
	a.peer("destination", &f.Destination)
	if f.Egress != nil {
		a.text("weir.flow.domain", f.Egress.Domain)
		a.text("weir.flow.domain.asked", f.Egress.Name)
	}
	a.text("weir.flow.service", f.Service)
	a.text("weir.flow.asked", f.Asked)
	a.text("weir.flow.path", f.Path)
	a.text("weir.flow.return", f.Return)
	a.text("weir.flow.tcp.flags", f.TCPFlags)
	if f.Handshake > 0 {
		a.number("weir.flow.tcp.handshake_us", uint64(f.Handshake))
	}
	if again := f.Retransmitted; again != nil {
		a.number("weir.flow.sent.retransmitted", again.Sent)
		a.number("weir.flow.received.retransmitted", again.Received)
	}
	a.flag("weir.flow.handed_on", f.HandedOn)
	a.flag("weir.flow.dsr", f.DSR)
	a.flag("weir.flow.snat", f.SNAT)
	a.number("weir.flow.sent.packets", f.Sent.Packets)
	a.number("weir.flow.sent.bytes", f.Sent.Bytes)
	a.number("weir.flow.received.packets", f.Received.Packets)
	a.number("weir.flow.received.bytes", f.Received.Bytes)
	r.Attributes = a
	return r
}
