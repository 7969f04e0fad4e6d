// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/watch"
)

// TestPlaneChoice: what the other data plane left is looked for whenever it cannot be excluded that
// it was there.
func TestPlaneChoice(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	file := filepath.Join(dir, "dataplane.json")
	start := func(e config.Effective, lacks error, nftables, other bool) *planeChooser {
		t.Helper()
		p := openPlaneChooser(dir, "", log)
		if got := p.choose(e, lacks); got != nftables || p.choice.Other != other || p.unsaved {
			t.Errorf("nftables %v, the other may be there %v, unsaved %v; want %v, %v", got, p.choice.Other, p.unsaved, nftables, other)
		}
		return p
	}
	p := start(config.Effective{}, nil, false, true) // nobody knows what was there
	p.choice.Other = false
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	start(config.Effective{NFTables: true}, nil, false, false) // as before, until the cluster's settings are read
	start(config.Effective{}, errors.New("no such map"), true, true)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(config.Effective{NFTables: true}, nil, true, true)
}

// TestConnectionsToImport: connections are taken over where there was somebody who could have
// translated them.
func TestConnectionsToImport(t *testing.T) {
	failing := errors.New("no answer")
	for name, c := range map[string]struct {
		other     bool
		tables    bool
		tablesErr error
		rules     bool
		rulesErr  error
		want      flowhandover.ImportScope
	}{
		"nobody":                  {other: true, want: flowhandover.ImportNone},
		"as before":               {tables: true, rules: true, want: flowhandover.ImportNone},
		"our tables":              {other: true, tables: true, want: flowhandover.ImportAll},
		"beside a kube-proxy":     {other: true, tables: true, rules: true, want: flowhandover.ImportAll},
		"a kube-proxy":            {other: true, rules: true, want: flowhandover.ImportTranslated},
		"tables cannot be listed": {other: true, tablesErr: failing, want: flowhandover.ImportTranslated},
		"rules cannot be listed":  {other: true, rulesErr: failing, want: flowhandover.ImportTranslated},
	} {
		p := &planeChooser{log: slog.New(slog.DiscardHandler), choice: planeChoice{Other: c.other}}
		got := p.connectionsToImport(func() (bool, error) { return c.tables, c.tablesErr }, func() (bool, error) { return c.rules, c.rulesErr })
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestPlaneChoiceThatCannotBeKept is known for one.
func TestPlaneChoiceThatCannotBeKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := openPlaneChooser(dir, "", slog.New(slog.DiscardHandler))
	if p.choose(config.Effective{}, nil); !p.unsaved {
		t.Error("a choice that could not be written counts as remembered")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.save(); err != nil || p.unsaved {
		t.Errorf("saving again: %v", err)
	}
}

// TestProgramsAreTried where eBPF is asked for, and not where nftables is: what the agent took for
// asked for at its start may be older.
func TestProgramsAreTried(t *testing.T) {
	for name, nftables := range map[string]bool{"eBPF is asked for": false, "nftables is asked for": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				a := &Agent{log: slog.New(slog.DiscardHandler), loop: b.cluster.loop, cluster: b.cluster}
				tries := 0
				ended := make(chan error, 1)
				go func() {
					ended <- a.tryWith(t.Context(), func(context.Context, *slog.Logger) error {
						tries++
						return ebpf.ErrRefused
					})
				}()
				time.Sleep(time.Minute)
				if tries > 0 {
					t.Error("programs were tried before a state was in place")
				}
				all := whole()
				all.Configs = map[string]*watch.FelixConfig{"default": {Spec: map[string]any{"bpfEnabled": !nftables}}}
				b.cluster.applyBatch(t.Context(), all)
				want := 1
				if nftables {
					want = 0
				}
				if err := <-ended; tries != want || errors.Is(err, ebpf.ErrRefused) == nftables {
					t.Errorf("tried %d times, want %d: %v", tries, want, err)
				}
			})
		})
	}
}
