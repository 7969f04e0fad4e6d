// SPDX-License-Identifier: Apache-2.0

package vmaddr

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

var (
	four = netip.MustParseAddr("10.244.1.2")
	six  = netip.MustParseAddr("fd00::2")
	mac  = [6]byte{2, 0, 0, 0, 0, 1}
)

// clusterWith is one with a machine at n1; target is the pod on n2 that it is moved to.
func clusterWith(target string, of ...netip.Addr) *model.Cluster {
	c := model.NewCluster()
	for _, a := range of {
		p := netip.PrefixFrom(a, a.BitLen())
		c.Blocks[p] = &model.Block{CIDR: p, Node: "n1", VM: &model.BlockVM{Name: model.Name{Namespace: "shop", Name: "a"}, Pod: "one", TargetNode: "n2", TargetPod: target, MAC: mac}}
	}
	return c
}

func pod(uid string, labels map[string]string) cni.Pod {
	return cni.Pod{Name: model.Name{Namespace: "shop", Name: "launcher-" + uid}, UID: uid, Labels: labels}
}

// TestGranted: the target of a migration waits for all addresses of its machine, and has them with
// its MAC address; other pods do not wait.
func TestGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{Node: "n2", Log: slog.New(slog.DiscardHandler)})
		moved := pod("two", map[string]string{model.LabelKubeVirt: model.KubeVirtLauncher, model.LabelKubeVirtMigration: "m", model.LabelKubeVirtName: "a"})
		for _, p := range []cni.Pod{pod("x", nil), pod("x", map[string]string{model.LabelKubeVirtName: "a"}), pod("x", map[string]string{model.LabelKubeVirt: model.KubeVirtLauncher, model.LabelKubeVirtName: "b"}), moved} {
			if g, err := m.Granted(t.Context(), p); err != nil || len(g.Addrs) > 0 {
				t.Errorf("%v, where machines keep nothing: %v, %v", p.Labels, g, err)
			}
		}
		m.Note(model.NewCluster(), true)
		got := make(chan cni.Grant)
		go func() {
			g, err := m.Granted(t.Context(), moved)
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		synctest.Wait()
		c := clusterWith("", four, six)
		m.Note(c, true)
		c = clusterWith("two", four)
		c.Blocks[netip.PrefixFrom(six, 128)] = clusterWith("", six).Blocks[netip.PrefixFrom(six, 128)]
		m.Note(c, true)
		synctest.Wait()
		select {
		case g := <-got:
			t.Errorf("has %v before it has all", g)
		default:
		}
		m.Note(clusterWith("two", four, six), true)
		if g := <-got; len(g.Addrs) != 2 || g.Addrs[0] != four || g.Addrs[1] != six || g.MAC != mac {
			t.Errorf("has %v", g)
		}
		if !m.StandsBy(four) || m.StandsBy(netip.MustParseAddr("10.244.1.3")) || m.Kept(four) == "" {
			t.Error("who has the address is not known")
		}
	})
}

// TestHostilePodOfMachineWaits: a pod with the labels of a machine, or of its migration, that the
// controller does not name, gets no address at all.
func TestHostilePodOfMachineWaits(t *testing.T) {
	hostile.Record(t, "a pod has the labels of a virtual machine's, and would have the machine's address", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, labels := range []map[string]string{{model.LabelKubeVirt: model.KubeVirtLauncher, model.LabelKubeVirtName: "a"}, {model.LabelKubeVirt: model.KubeVirtLauncher, model.LabelKubeVirtMigration: "m"}} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{Node: "n2", Log: slog.New(slog.DiscardHandler)})
			m.Note(clusterWith("two", four), true)
			if g, err := m.Granted(context.Background(), pod("thief", labels)); err == nil || len(g.Addrs) > 0 {
				t.Errorf("%v: has %v, %v", labels, g, err)
			}
		})
	}
}
