package controller

import (
	"context"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// addressesOfPools returns what has addresses of a deleted pool: blocks, and pods beside them, as those with an address of an IPReservation. A block
// that was claimed after the pool was deleted counts for nobody, and does not keep it.
func (c *Controller) addressesOfPools(ctx context.Context) (func(*unstructured.Unstructured) (string, error), error) {
	blocks, err := c.blocks.List(ctx)
	if err != nil {
		return nil, err
	}
	pods := sync.OnceValues(func() ([]netip.Addr, error) { return c.podAddresses(ctx) }) // all of a cluster: asked for when no block is left
	return func(pool *unstructured.Unstructured) (string, error) {
		cidr, err := netip.ParsePrefix(cidrOf(pool))
		if err != nil {
			return "", nil // agents do not use it
		}
		for i := range blocks {
			b := &blocks[i]
			p, err := netip.ParsePrefix(b.Spec.CIDR)
			if err == nil && p.Overlaps(cidr) && !b.CreationTimestamp.After(pool.GetDeletionTimestamp().Time) {
				return "block " + p.String() + " of " + ownerOf(b), nil
			}
		}
		addrs, err := pods()
		if err != nil {
			return "", err
		}
		if a, used := firstWithin(cidr.String(), addrs); used {
			return "a pod with the address " + a.String(), nil
		}
		return "", nil
	}, nil
}

// ownerOf says whose a block is.
func ownerOf(b *weirv1.IPAMBlock) string {
	if b.Spec.Node == weirv1.LoadBalancers {
		return "load balancers"
	}
	return "node " + b.Spec.Node
}
