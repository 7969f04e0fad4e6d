// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// What another source has takes the place of all that was there, configuration and reservations
// too, in one state: none in between lacks what both have.
func TestAnotherSourceReplacesTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		first := whole()
		first.Pods = map[model.Name]*model.Pod{web: webPod(), {Namespace: "shop", Name: "old"}: {Name: model.Name{Namespace: "shop", Name: "old"}, Node: "n2",
			Addrs: []netip.Addr{netip.MustParseAddr("10.244.2.7")}}}
		first.Configs = map[string]*watch.FelixConfig{"node.n1": {Spec: map[string]any{"bpfExternalServiceMode": "DSR"}}}
		first.Reservations = map[string]*watch.Reservation{"r": {Name: "r", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.9.0/30")}}}
		first.IPAM = &watch.IPAMConfig{StrictAffinity: true, MaxBlocks: 3}
		b.cluster.applyBatch(t.Context(), first)
		b.api[web] = webPod()
		if err := b.cni.Attach(t.Context(), webEP); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !b.kernel.last().Settings.DSR {
			t.Fatal("the node's own configuration is not in force")
		}
		states := len(b.kernel.states)
		second := whole()
		second.Pods = map[model.Name]*model.Pod{web: webPod()}
		b.cluster.applyBatch(t.Context(), second)
		synctest.Wait()
		for _, s := range b.kernel.states[states:] {
			if a := s.Addrs[webAddr]; a.Ingress.Set == 0 {
				t.Errorf("a state has %+v of a pod that both sources have", a)
			}
		}
		if b.kernel.last().Settings.DSR {
			t.Error("a configuration that the second source does not have is in force")
		}
		err := b.cluster.do(t.Context(), func() {
			c := b.cluster
			if c.model.Pods.Len() != 1 || len(c.ipamConf.reservations) != 0 || c.ipamConf.settings.MaxBlocks != 0 {
				t.Errorf("%d pods, reservations %v, IPAM %+v", c.model.Pods.Len(), c.ipamConf.reservations, c.ipamConf.settings)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, known := b.cluster.owner(netip.MustParseAddr("10.244.2.7")); known {
			t.Error("the pod that is gone still has its address")
		}
	})
}
