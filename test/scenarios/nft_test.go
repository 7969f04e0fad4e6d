// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/test/scenarios/scenario"
	"github.com/weir-net/weir/test/scenarios/wires"
)

func newWires(t *testing.T) *wires.Runner {
	t.Helper()
	skipInShort(t)
	nettest.NeedRoot(t, "making network namespaces")
	return wires.NewRunner(func(*scenario.Machine) (dataplane.Driver, error) {
		d, err := nft.New(nft.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		if err := d.Listen(true); err != nil {
			return nil, err
		}
		events, err := d.Events()
		return reporting{d, events}, err
	})
}

// reporting is a driver that reports what it evaluated.
type reporting struct {
	*nft.Driver
	events *nft.EventReader
}

// Reported implements wires.Reporter.
func (t reporting) Reported() ([]dataplane.Event, error) { return t.events.Waiting() }

func (t reporting) Close() error { return errors.Join(t.events.Close(), t.Driver.Close()) }

// TestNFT plays every scenario on kernels that the nftables driver wrote, with the oracle alongside
// them. What a scenario needs, and the driver says that it lacks, ends it; skips-nft.golden has the
// line, so that this cannot grow unseen.
func TestNFT(t *testing.T) {
	r := newWires(t)
	var skips strings.Builder
	played := 0
	for i, name := range files(t) {
		if testing.Short() && i%shortNFT != 0 {
			continue
		}
		t.Run(strings.TrimSuffix(name, ".txtar"), func(t *testing.T) {
			played++
			defer func() {
				if err := r.Reset(); err != nil {
					t.Error(err)
				}
			}()
			err := read(t, name).Play(r.New)
			if ended := (*scenario.Ended)(nil); errors.As(err, &ended) {
				t.Log(ended)
				fmt.Fprintf(&skips, "%s: from line %d on: %s: %s\n", name, ended.Line, ended.Need, ended.Why)
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		})
	}
	t.Logf("%d packets; left to the oracle alone: %v", r.Played, r.Skipped)
	golden, err := os.ReadFile("skips-nft.golden")
	if err != nil {
		t.Fatal(err)
	}
	if played == len(files(t)) && !t.Failed() && skips.String() != string(golden) {
		t.Errorf("what is skipped changed; if that is right, skips-nft.golden should be\n%s", &skips)
	}
}
