// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/flows"
)

// to is another program, as a test wants it.
type to struct {
	mu   sync.Mutex
	err  error
	hang bool
	got  int
	max  int
}

func (p *to) set(err error, hang bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.hang = err, hang
}

func (p *to) Send(ctx context.Context, records []*flows.Flow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hang {
		p.mu.Unlock()
		<-ctx.Done()
		p.mu.Lock()
		return ctx.Err()
	}
	if p.max = max(p.max, len(records)); p.err == nil {
		p.got += len(records)
	}
	return p.err
}

func (p *to) Close() error { return nil }

// counts are the metrics: "" = sent.
func counts(t *testing.T, e *Exporter) map[string]int {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(e)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			why := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "why" {
					why = l.GetValue()
				}
			}
			out[why] += int(m.GetCounter().GetValue())
		}
	}
	return out
}

func offer(e *Exporter, n int) {
	for range n {
		e.Offer(&flows.Flow{})
	}
}

// Records are sent in batches, those of a moment soon; while they cannot be sent they wait, and
// what there is no room for is counted. Who offers never waits.
func TestExporter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &to{}
		e := New("test", p, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { e.Run(ctx); close(ended) }()
		offer(e, 3)
		time.Sleep(2 * gather)
		if p.got != 3 {
			t.Errorf("%d records were sent soon", p.got)
		}
		offer(e, 5000)
		time.Sleep(2 * gather)
		if p.got != 5003 || p.max != batchMost {
			t.Errorf("%d records were sent, up to %d at a time", p.got, p.max)
		}
		p.set(errors.New("away"), false)
		began := time.Now()
		offer(e, queueMost+5000)
		if took := time.Since(began); took != 0 {
			t.Errorf("offering took %s", took)
		}
		time.Sleep(10 * time.Minute)
		lost := counts(t, e)[LostQueue]
		if p.got != 5003 || lost < 5000-batchMost || lost > 5000 {
			t.Errorf("while it is away: %d, %v", p.got, counts(t, e))
		}
		if got := e.Lost(began.Add(-1)); got[LostQueue] != uint64(lost) || e.Lost(time.Now()) != nil {
			t.Errorf("lost since the offer: %v", got)
		}
		p.set(nil, true) // it takes connections, and says nothing
		time.Sleep(10 * time.Minute)
		p.set(nil, false)
		time.Sleep(sendTime + 2*retryMost) // the send that hangs, and at most 1.5 of the longest wait
		if want := 5003 + queueMost + 5000 - lost; p.got != want {
			t.Errorf("when it is back: %d, want %d", p.got, want)
		}
		sent := p.got
		p.set(&Refused{Records: 2, Why: errors.New("too old")}, false)
		offer(e, 10)
		time.Sleep(2 * gather)
		if c := counts(t, e); c[LostRefused] != 2 || c[""] != sent+8 {
			t.Errorf("some are refused: %v", c)
		}
		p.set(nil, false)
		offer(e, 2000)
		cancel()
		<-ended
		if c := counts(t, e); p.got != sent+2000 || c[LostEnd] != 0 || c[""] != sent+2008 {
			t.Errorf("at the end: %d, %v", p.got, c)
		}
	})
}

// A store that ends does not wait for long for who is away, and counts what that does not get.
func TestExporterEnds(t *testing.T) {
	t.Parallel()
	for _, hang := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &to{err: errors.New("away"), hang: hang}
			e := New("test", p, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { e.Run(ctx); close(ended) }()
			offer(e, 3000)
			time.Sleep(2 * gather)
			began := time.Now()
			cancel()
			<-ended
			if took := time.Since(began); took > endTime {
				t.Errorf("it took %s", took)
			}
			if c := counts(t, e); c[LostEnd] != 3000 {
				t.Errorf("%v", c)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://c.example.com": "https c.example.com:4317", "http://10.0.0.1:99/": "http 10.0.0.1:99", "https://[2001:db8::1]:5": "https [2001:db8::1]:5",
		"c.example.com:4317": "", "https://": "", "ftp://c": "", "https://c/path": "", "https://u:p@c": "", "https://c?x=y": "", "https://c:0": "", "https://c:port": "", "https://c:70000": "", "": "",
	} {
		got := ""
		a, err := ParseAddress(text, "4317", "https", "http")
		if err == nil {
			got = a.Scheme + " " + a.HostPort()
		}
		if got != want {
			t.Errorf("%q is %q, want %q: %v", text, got, want, err)
		}
	}
}

// A folder of certificates that is none is said.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if cfg, err := TLS(dir, "c"); err != nil || cfg.RootCAs != nil || cfg.ServerName != "c" || cfg.InsecureSkipVerify {
		t.Errorf("an empty folder: %+v, %v", cfg, err)
	}
	for _, name := range []string{caFile, certFile} {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == certFile {
			if err := os.WriteFile(filepath.Join(dir, keyFile), []byte("no key"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := TLS(dir, "c"); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
}
