// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/weir-net/weir/internal/await"
)

func TestConflistIsReadByRuntimes(t *testing.T) {
	c := File{Dir: t.TempDir()}
	wrote, err := c.ensure("/run/weir/cni.sock", Families{IPv4: true})
	if err != nil || !wrote {
		t.Fatalf("wrote %t, %v", wrote, err)
	}
	if wrote, err = c.ensure("/run/weir/cni.sock", Families{IPv4: true}); err != nil || wrote {
		t.Errorf("wrote again: %t, %v", wrote, err)
	}
	list, err := libcni.ConfListFromFile(c.path())
	if err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.0.0" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "weir-cni" {
		t.Errorf("%+v", list)
	}
	files, err := libcni.ConfFiles(c.Dir, []string{".conf", ".conflist", ".json"})
	if err != nil || len(files) != 1 {
		t.Errorf("files for the runtime: %v, %v", files, err)
	}
}

// TestConflistFollowsFamilies: the file says which families pods get, also when that changes.
func TestConflistFollowsFamilies(t *testing.T) {
	c := File{Dir: t.TempDir()}
	var families atomic.Value
	families.Store(Families{IPv4: true})
	look, stop := make(chan struct{}, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		stop <- c.Keep(ctx, "/run/weir/cni.sock", func() error { return nil }, func() Families { return families.Load().(Families) }, look, slog.New(slog.DiscardHandler))
	}()
	for _, want := range []Families{{IPv4: true}, {true, true}, {IPv6: true}, {IPv4: true}} {
		families.Store(want)
		select {
		case look <- struct{}{}:
		default:
		}
		await.That(t, fmt.Sprintf("%+v", want), func() error {
			raw, err := os.ReadFile(c.path())
			if err != nil {
				return err
			}
			var conf struct {
				Plugins []struct {
					IPAM struct {
						IPv4 bool `json:"assign_ipv4"`
						IPv6 bool `json:"assign_ipv6"`
					}
				}
			}
			if err := json.Unmarshal(raw, &conf); err != nil {
				return err
			}
			if got := conf.Plugins[0].IPAM; Families(got) != want {
				return fmt.Errorf("the file says %+v", got)
			}
			return nil
		})
	}
	cancel()
	if err := <-stop; err != nil {
		t.Error(err)
	}
}
