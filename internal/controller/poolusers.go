// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// addressesOfPools returns what has addresses of a deleted pool: blocks, and pods alongside them. A
// block that was claimed after the pool was deleted counts for nobody, and does not keep it. Nor
// does a pod that is younger than that, or has an address that nobody but its node grants it:
// outside of all blocks an address counts that an IPReservation holds, and with routeSource
// WorkloadIPs each.
func (c *Controller) addressesOfPools(ctx context.Context) (func(*unstructured.Unstructured) (string, error), error) {
	blocks, err := c.blocks.List(ctx)
	if err != nil {
		return nil, err
	}
	others, err := c.livePools(ctx)
	if err != nil {
		return nil, err
	}
	elsewhere := func(p netip.Prefix) bool {
		return slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	}
	pods := sync.OnceValues(func() ([]podAddress, error) { return c.grantedAddresses(ctx) }) // all of a cluster: asked for when no block is left
	return func(pool *unstructured.Unstructured) (string, error) {
		cidr, err := netip.ParsePrefix(cidrOf(pool))
		if err != nil {
			return "", nil // agents do not use it
		}
		for i := range blocks {
			b := &blocks[i]
			p, err := netip.ParsePrefix(b.Spec.CIDR)
			if err == nil && p.Overlaps(cidr) && !elsewhere(p) && !b.CreationTimestamp.After(pool.GetDeletionTimestamp().Time) {
				return "block " + p.String() + " of " + ownerOf(b), nil
			}
		}
		addrs, err := pods()
		if err != nil {
			return "", err
		}
		for _, a := range addrs {
			if cidr.Contains(a.Addr) && !elsewhere(netip.PrefixFrom(a.Addr, a.BitLen())) && !a.created.After(pool.GetDeletionTimestamp().Time) {
				return "a pod with the address " + a.String(), nil
			}
		}
		return "", nil
	}, nil
}

// grantedAddresses are those of pods that an administrator grants them outside of all blocks.
func (c *Controller) grantedAddresses(ctx context.Context) ([]podAddress, error) {
	pods, err := c.podAddresses(ctx)
	if err != nil {
		return nil, err
	}
	m := model.NewCluster()
	if err := c.readSettings(ctx, m); err != nil {
		return nil, err
	}
	if m.Settings.WorkloadRoutes {
		return pods, nil
	}
	list, err := c.cfg.Dynamic.Resource(reservationResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list IPReservations: %w", err)
	}
	var reserved []netip.Prefix
	for i := range list.Items {
		r := &v3.IPReservation{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, r); err != nil {
			return nil, fmt.Errorf("read IPReservation %s: %w", list.Items[i].GetName(), err)
		}
		v, _ := watch.ConvertReservation(r)
		reserved = append(reserved, v.CIDRs...)
	}
	return slices.DeleteFunc(pods, func(p podAddress) bool { return !model.Within(reserved, p.Addr) }), nil
}

// livePools are the networks of pools that are not deleted.
func (c *Controller) livePools(ctx context.Context) ([]netip.Prefix, error) {
	list, err := c.cfg.Dynamic.Resource(poolResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	var out []netip.Prefix
	for i := range list.Items {
		if list.Items[i].GetDeletionTimestamp() != nil {
			continue
		}
		if p, err := netip.ParsePrefix(cidrOf(&list.Items[i])); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out, nil
}

// ownerOf says whose a block is.
func ownerOf(b *weirv1.IPAMBlock) string {
	if b.Spec.Node == weirv1.LoadBalancers {
		return "load balancers"
	}
	return "node " + b.Spec.Node
}
