// SPDX-License-Identifier: Apache-2.0

package results

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// file is what libcni writes of an ADD.
func file(t *testing.T, name, uid string, addrs ...string) []byte {
	t.Helper()
	var ips []map[string]string
	for _, a := range addrs {
		ips = append(ips, map[string]string{"address": a})
	}
	raw, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": "c", "config": "e30=", "ifName": "eth0", "networkName": "azure",
		"cniArgs":        [][]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", uid}},
		"capabilityArgs": map[string]any{"dns": map[string]any{}},
		"result":         map[string]any{"cniVersion": "0.3.0", "interfaces": []any{map[string]any{"name": "eth0"}}, "ips": ips},
	})
	nettest.Must(t, err)
	return raw
}

func TestDecode(t *testing.T) {
	when := time.Unix(1000, 0)
	r, err := decode(file(t, "a", "u1", "172.31.0.9/24", "fd00::9/64"), when)
	want := Record{Pod: model.Name{Namespace: "ns", Name: "a"}, UID: "u1", When: when, Addrs: []netip.Addr{netip.MustParseAddr("172.31.0.9"), netip.MustParseAddr("fd00::9")}}
	if err != nil || r.Pod != want.Pod || r.UID != want.UID || !r.When.Equal(when) || !slices.Equal(r.Addrs, want.Addrs) {
		t.Errorf("%+v, %v; want %+v", r, err, want)
	}
	for what, text := range map[string]string{
		"no pod":         `{"kind":"cniCacheV1","cniArgs":[["A","b"]],"result":{"ips":[{"address":"10.0.0.1/32"}]}}`,
		"loopback":       `{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","a"]],"result":{"ips":[{"address":"127.0.0.1/8"}]}}`,
		"an older form":  `{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","a"]],"result":{"ip4":{"ip":"10.0.0.1/32"}}}`,
		"no result":      `{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","a"]]}`,
		"cut":            string(file(t, "a", "u", "10.0.0.1/32")[:80]),
		"another kind":   `{"kind":"other","cniArgs":[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","a"]],"result":{"ips":[{"address":"10.0.0.1/32"}]}}`,
		"no address":     `{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE","ns"],["K8S_POD_NAME","a"]],"result":{"ips":[{"address":"x"}]}}`,
		"args of nobody": `{"kind":"cniCacheV1","cniArgs":{},"result":{"ips":[{"address":"10.0.0.1/32"}]}}`,
	} {
		if r, err := decode([]byte(text), when); len(r.Addrs) > 0 {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
}

// TestFollow: records come, go and change with their files, those that were there before among
// them, a file that is written in pieces counts when it is whole, and of two records of an address
// the later one does.
func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	nettest.Must(t, os.Mkdir(dir, 0o755))
	put := func(name string, raw []byte, when time.Time) {
		t.Helper()
		nettest.Must(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
		nettest.Must(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	now := time.Now()
	put("azure-1-eth0", file(t, "old", "u1", "10.0.0.1/24"), now.Add(-time.Hour))
	w := New(dir, slog.New(slog.DiscardHandler))
	is := func(what string, want map[string]string) {
		t.Helper()
		await.That(t, what, func() error {
			have := map[string]string{}
			for a, r := range w.Owners() {
				have[a.String()] = r.Pod.Name + " " + r.UID
			}
			if !maps.Equal(have, want) {
				return fmt.Errorf("owners %v, want %v", have, want)
			}
			return nil
		})
	}
	is("what was there", map[string]string{"10.0.0.1": "old u1"})
	ctx, stop := context.WithCancel(t.Context())
	ended, changed := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		ended <- w.Run(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-changed
	whole := file(t, "new", "u2", "10.0.0.2/24")
	put("azure-2-eth0", whole[:50], now)
	put("azure-2-eth0", whole, now)
	is("a new pod", map[string]string{"10.0.0.1": "old u1", "10.0.0.2": "new u2"})
	<-changed
	put("azure-3-eth0", file(t, "again", "u3", "10.0.0.1/24"), now)
	is("an address that is given again", map[string]string{"10.0.0.1": "again u3", "10.0.0.2": "new u2"})
	nettest.Must(t, os.Remove(filepath.Join(dir, "azure-2-eth0")))
	nettest.Must(t, os.Remove(filepath.Join(dir, "azure-3-eth0")))
	is("pods that went", map[string]string{"10.0.0.1": "old u1"})
}

// TestNoFolder: a folder that is missing is no error.
func TestNoFolder(t *testing.T) {
	w := New(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := w.Run(ctx, func() {}); err != nil || len(w.Owners()) > 0 {
		t.Error(err, w.Owners())
	}
}
