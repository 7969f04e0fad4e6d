// SPDX-License-Identifier: Apache-2.0

package kinds

import "testing"

func TestFind(t *testing.T) {
	for in, want := range map[string]string{"ippools": "IPPool", "IPPool": "IPPool", "felixconfig": "FelixConfiguration", "gnp": "GlobalNetworkPolicy",
		"networkpolicies.projectcalico.org": "NetworkPolicy", "ipamblocks": "IPAMBlock", "nodestatus": "NodeStatus",
		"ippools.v3.projectcalico.org": "IPPool", "clusterinformations": "ClusterInformation"} {
		if k, err := Find(in); err != nil || k.Name != want {
			t.Errorf("%s: %+v %v", in, k, err)
		}
	}
	for _, in := range []string{"pods", "", "ippools.weir.dev"} {
		if k, err := Find(in); err == nil {
			t.Errorf("%q was taken as %s", in, k.Name)
		}
	}
	kinds, err := All()
	if err != nil || len(kinds) != 29 {
		t.Fatalf("%d kinds, %v", len(kinds), err)
	}
	for _, k := range kinds {
		namespaced := k.Name == "NetworkPolicy" || k.Name == "NetworkSet" || k.Name == "StagedNetworkPolicy" || k.Name == "StagedKubernetesNetworkPolicy"
		if k.Namespaced != namespaced {
			t.Errorf("%s namespaced: %v", k.Name, k.Namespaced)
		}
	}
}
