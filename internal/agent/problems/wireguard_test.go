// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

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
