// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/migrate/calico"
)

// claims are blocks that were claimed with Weir.
type claims map[netip.Prefix]bool

func (c claims) List(context.Context) ([]ipam.Block, error) { return nil, nil }

func (c claims) Claim(_ context.Context, cidr netip.Prefix, _ string) error {
	c[cidr] = true
	return nil
}

func (c claims) Release(_ context.Context, cidr netip.Prefix) error {
	delete(c, cidr)
	return nil
}

// TestBlocks: a block that Calico has on another node is taken, whoever asks; one that is claimed
// is Calico's too, with nothing to give, until it is given back.
func TestBlocks(t *testing.T) {
	ctx := context.Background()
	other, own, free := netip.MustParsePrefix("10.244.1.0/26"), netip.MustParsePrefix("10.244.1.64/26"), netip.MustParsePrefix("10.244.1.128/26")
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{calico.IPAMBlocks: "IPAMBlockList", calico.BlockAffinities: "BlockAffinityList"},
		calico.SealedBlock(other, "n2"), calico.SealedBlock(own, "n1"))
	c := claims{}
	b := (&Node{name: "n1", api: api}).Blocks(c)
	if err := b.Claim(ctx, other, "p"); !errors.Is(err, ipam.ErrTaken) || c[other] {
		t.Errorf("another node's: %v", err)
	}
	for _, cidr := range []netip.Prefix{own, free} {
		if err := b.Claim(ctx, cidr, "p"); err != nil || !c[cidr] {
			t.Errorf("%s: %v", cidr, err)
		}
		if _, err := api.Resource(calico.BlockAffinities).Get(ctx, calico.Affinity(cidr, "n1").GetName(), metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	u, err := api.Resource(calico.IPAMBlocks).Get(ctx, calico.SealedBlock(free, "n1").GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if has, ok, err := calico.ReadBlock(u); err != nil || !ok || has.Node != "n1" || len(has.Allocations) != 64 {
		t.Errorf("%+v, %v", has, err)
	}
	if err := b.Release(ctx, free); err != nil || c[free] {
		t.Error(err)
	}
	left, err := api.Resource(calico.IPAMBlocks).List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) != 2 {
		t.Errorf("%d blocks are left, %v", len(left.Items), err)
	}
}
