// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/export"
)

// otelVariable is the environment's that names OpenTelemetry's collector, which `make otelcol` builds.
const otelVariable = "WEIR_OTELCOL"

// opentelemetry runs OpenTelemetry's collector, which receives at addr by TLS with the certificates
// of a folder, and sends on to another collector. It ends with stop.
func opentelemetry(t *testing.T, folder, addr, to string) (stop func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`
receivers:
  otlp:
    protocols:
      grpc: {endpoint: %[1]q, tls: {cert_file: %[2]s/tls.crt, key_file: %[2]s/tls.key, client_ca_file: %[2]s/ca.crt}}
exporters:
  otlp: {endpoint: %[3]q, tls: {insecure: true}, compression: none, sending_queue: {enabled: false}, retry_on_failure: {enabled: false}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    logs: {receivers: [otlp], exporters: [otlp]}
`, addr, folder, to)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Getenv(otelVariable), "--config", "file:"+file)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // it is told to end
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // unless it has ended
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("the collector says:\n%s", said.String())
		}
	})
	await.That(t, "the collector listens", func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			err = c.Close()
		}
		select {
		case <-ended:
			t.Fatalf("the collector has ended:\n%s", said.String())
		default:
		}
		return err
	})
	return stop
}

// counted says whether an exporter's metrics are these.
func counted(e *export.Exporter, sent, end int) error {
	return testutil.CollectAndCompare(e, strings.NewReader(fmt.Sprintf(`
# HELP weir_flowstore_export_lost_total Flow records that another program did not get, by protocol and why: queue (they came faster than it takes them, or it is away), refused (it does not want them, or the protocol cannot say them), end (the store ended first).
# TYPE weir_flowstore_export_lost_total counter
weir_flowstore_export_lost_total{to="otlp",why="end"} %d
weir_flowstore_export_lost_total{to="otlp",why="queue"} 0
weir_flowstore_export_lost_total{to="otlp",why="refused"} 0
# HELP weir_flowstore_exported_total Flow records that were sent to another program, by protocol: otlp, ipfix. By UDP nobody knows whether they arrived.
# TYPE weir_flowstore_exported_total counter
weir_flowstore_exported_total{to="otlp"} %d
`, end, sent)))
}

// OpenTelemetry's collector, as it is, takes what the store sends on, and sends it on as it was;
// records that it does not take because it is away are counted.
func TestCollector(t *testing.T) {
	if os.Getenv(otelVariable) == "" {
		t.Skipf("NOT RUN: %s is not set: make otelcol builds OpenTelemetry's collector", otelVariable)
	}
	t.Parallel()
	folder := certificates(t)
	to, got := collector(t, "", func() ([]byte, error) { return nil, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // the collector takes the port
	stop := opentelemetry(t, folder, addr, to)

	records := []*flows.Flow{record}
	for i := range 2000 { // more than one batch
		f := *record
		f.Node, f.Verdict, f.Rule, f.Handshake = fmt.Sprintf("n%d", i%3), flows.Allowed, nil, uint32(i)
		f.Source.Port, f.Sent.Bytes = uint16(1024+i), uint64(i)<<32
		records = append(records, &f)
	}
	s, err := New("https://"+addr, folder, "v9")
	if err != nil {
		t.Fatal(err)
	}
	e := export.New("otlp", s, slog.New(slog.DiscardHandler))
	for _, f := range records {
		e.Offer(f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	await.That(t, "all records are sent", func() error { return counted(e, len(records), 0) })
	key := func(node string, r *logspb.LogRecord) string {
		r.ObservedTimeUnixNano = 0
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return node + string(text)
	}
	each := func(data *logspb.LogsData, do func(key string)) {
		for _, of := range data.GetResourceLogs() {
			for _, logs := range of.GetScopeLogs() {
				for _, r := range logs.GetLogRecords() {
					do(key(of.GetResource().String()+logs.GetScope().String(), r))
				}
			}
		}
	}
	// Texts of messages differ in their blanks from one process's run to the next, not within one.
	left := map[string]int{}
	each(Logs(records, "v9", time.Now()), func(key string) { left[key]++ })
	for n := len(got); n > 0; n-- {
		each(<-got, func(key string) {
			if left[key]--; left[key] == 0 {
				delete(left, key)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("%d log records are not as they were sent, of %d", len(left), len(records))
	}

	stop()
	const away = 5
	for range away {
		e.Offer(record)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the exporter does not end")
	}
	if err := counted(e, len(records), away); err != nil {
		t.Errorf("with the collector away: %v", err)
	}
}
