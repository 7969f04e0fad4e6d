// SPDX-License-Identifier: Apache-2.0

package remembered

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

func TestNodeClaimsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.json")
	c := NewClaims(path, slog.New(slog.DiscardHandler))
	a, b := netip.MustParseAddr("172.31.1.8"), netip.MustParseAddr("fd00:31:1::8")
	c.Note(map[string]*model.Node{"one": {UID: "1", Addrs: []netip.Addr{a, b}, Since: map[netip.Addr]int64{b: 7}}, "gone": {UID: "2", Addrs: []netip.Addr{a}},
		"deleted": {UID: "3"}}, true)
	c.Note(map[string]*model.Node{"deleted": nil}, false)
	again := NewClaims(path, slog.New(slog.DiscardHandler))
	if one := again.known["one"]; len(again.known) != 2 || one.UID != "1" || len(one.Addrs) != 2 || one.Addrs[a] != 0 || one.Addrs[b] != 7 {
		t.Errorf("kept: %+v", again.known)
	}
	again.Note(map[string]*model.Node{"one": {UID: "1", Addrs: []netip.Addr{a}}}, true)
	if third := NewClaims(path, slog.New(slog.DiscardHandler)); len(third.known) != 1 || len(third.known["one"].Addrs) != 1 {
		t.Errorf("kept at last: %+v", third.known)
	}
}
