// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

// TestChaining: another CNI plugin and a data plane are chosen independently of each other.
func TestChaining(t *testing.T) {
	for _, c := range []struct {
		env      []string
		chained  bool
		nft      bool
		problems int
	}{
		{nil, false, false, 0},
		{[]string{"FELIX_BPFENABLED=false"}, false, true, 0},
		{[]string{"FELIX_CNICHAINING=generic"}, true, false, 0},
		{[]string{"FELIX_CNICHAINING=aws-vpc-cni"}, true, false, 0},
		{[]string{"FELIX_CNICHAINING=generic", "FELIX_BPFENABLED=false"}, true, true, 0},
		{[]string{"FELIX_CNICHAINING=Disabled"}, false, false, 0},
		{[]string{"FELIX_CNICHAINING=calico"}, false, false, 1},
	} {
		got := New("n0", c.env, nil).Resolve()
		if got.Settings.Chained != c.chained || got.NFTables != c.nft || len(got.Problems) != c.problems {
			t.Errorf("%v: chained %v, nftables %v, problems %v", c.env, got.Settings.Chained, got.NFTables, got.Problems)
		}
	}
}
