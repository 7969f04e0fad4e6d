// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/wireguard"
)

// TestWireGuard: who looks at the status of a node is told to which nodes it sends in clear, and
// why it does not encrypt.
func TestWireGuard(t *testing.T) {
	t.Parallel()
	if got := WireGuard("n1", nil); got != nil {
		t.Errorf("without encryption: %v", got)
	}
	if got := WireGuard("n1", &wireguard.Status{Peers: 3}); got != nil {
		t.Errorf("all is encrypted: %v", got)
	}
	for value, clear := range map[string][]string{"n2": {"n2"}, "n2, n3": {"n2", "n3"}, "n2, n3, n4, n5, n6 and 2 more": {"n2", "n3", "n4", "n5", "n6", "n7", "n8"}} {
		got := WireGuard("n1", &wireguard.Status{Clear: clear})
		if len(got) != 1 || got[0].Object != "Node n1" || got[0].Value != value || !strings.Contains(got[0].Message, "in clear") {
			t.Errorf("%v: %+v", clear, got)
		}
	}
	for action, err := range map[string]error{"--wireguard-go": wireguard.ErrNoDevice, "wireguardListeningPort": fmt.Errorf("UDP port 51820 %w", wireguard.ErrForeign), "the log": errors.New("x")} {
		got := WireGuard("n1", &wireguard.Status{Errs: []error{err}})
		if len(got) != 1 || !strings.Contains(got[0].Action, action) || !strings.Contains(got[0].Message, err.Error()) {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// TestEncryptedPools: who asks for IP in IP of a node that encrypts is told that it is VXLAN.
func TestEncryptedPools(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	c.Settings = model.DefaultSettings()
	for name, mode := range map[string]model.EncapMode{"b": model.EncapAlways, "a": model.EncapCrossSubnet, "none": model.EncapNever} {
		c.Pools[name] = &model.Pool{Name: name, CIDR: netip.MustParsePrefix("10.0.0.0/16"), IPIP: mode}
	}
	if got := EncryptedPools(c); len(got) != 0 {
		t.Errorf("without encryption: %v", got)
	}
	c.Settings.WireGuard.IPv4.Enabled = true
	if got := EncryptedPools(c); len(got) != 2 || got[0].Object != "IPPool a" || got[0].Value != "CrossSubnet" || got[1].Object != "IPPool b" {
		t.Errorf("%v", got)
	}
	if c.Settings.IPIP = model.Off; len(EncryptedPools(c)) != 0 {
		t.Error("what ipipEnabled switched off has another reason")
	}
}
