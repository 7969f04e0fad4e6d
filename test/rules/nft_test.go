// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"
	"testing"
)

// nftOrder are the packages of the nftables driver, each of which imports only those before it: its
// package comment says so.
var nftOrder = []string{"table", "marks", "hostnet", "events", "records", "expr", "nfqueue", "names", "limits", "services", "policy", "egress", "chains", "dryrun", ""}

func TestNFTImportsDownward(t *testing.T) {
	t.Parallel()
	all := packages(t)
	place := func(path string) int {
		return slices.IndexFunc(nftOrder, func(name string) bool {
			return path == "internal/dataplane/nft/"+name || name == "" && path == "internal/dataplane/nft"
		})
	}
	for path, p := range all {
		if !within(path, "internal/dataplane/nft") {
			continue
		}
		at := place(path)
		if at < 0 {
			t.Errorf("%s has no place in the order of the nftables driver's packages", path)
			continue
		}
		for _, imported := range p.Imports {
			if within(imported, "internal/dataplane/nft") && place(imported) >= at {
				t.Errorf("%s imports %s, which comes after it", path, imported)
			}
		}
	}
}
