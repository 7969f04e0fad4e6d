// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The configured address does not answer: a learned one is used.
func TestAPIServerIsFoundAtALearnedAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	closed.Close()
	var log bytes.Buffer
	s := NewDialer(filepath.Join(t.TempDir(), "apiservers.json"), logTo(&log))
	if _, err := s.Dial(context.Background(), "tcp", dead); err == nil {
		t.Fatal("connected to nobody")
	}
	s.Learn([]string{ln.Addr().String()})
	conn, err := s.Dial(context.Background(), "tcp", dead)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != ln.Addr().String() || !strings.Contains(log.String(), "learned before") {
		t.Errorf("connected to %v, log %s", conn.RemoteAddr(), log.String())
	}
}

func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func TestCorruptStateFileIsNamedAndReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "apiservers.json")
	if err := os.WriteFile(file, []byte(`["172.31.1.8:64`), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := NewDialer(file, logTo(&log))
	if len(s.learned) != 0 || !strings.Contains(log.String(), file) {
		t.Errorf("learned %v, log %s", s.learned, log.String())
	}
	s.Learn([]string{"172.31.1.8:6443"})
	if again := NewDialer(file, logTo(&log)); !slices.Equal(again.learned, []string{"172.31.1.8:6443"}) {
		t.Errorf("learned %v", again.learned)
	}
}
