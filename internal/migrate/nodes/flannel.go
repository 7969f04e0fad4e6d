// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/migrate/flannel"
	"github.com/weir-net/weir/internal/migrate/plan"
)

// FromFlannel changes nodes from flannel to Weir by drain, and back. The block of a node is its pod
// CIDR with either, so that nodes reach each other's pods all the time. Change.Cluster has no
// meaning.
type FromFlannel struct {
	Change
	Flannel *flannel.Cluster
	Force   bool // pods without a controller may be lost
}

// Prepare gives each node its block, and keeps flannel off nodes that are changed.
func (c *FromFlannel) Prepare(ctx context.Context) error {
	if err := c.installed(ctx, flannel.App); err != nil {
		return err
	}
	for i := range c.Flannel.Nodes {
		n := &c.Flannel.Nodes[i]
		for _, text := range plan.PodCIDRs(n) {
			cidr, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("node %s: spec.podCIDR: %w", n.Name, err)
			}
			if err := c.makeBlock(ctx, cidr, n.Name); err != nil {
				return err
			}
		}
	}
	return c.stayAway(ctx, c.Flannel.Daemon.Namespace, c.Flannel.Daemon.Name)
}

// empty drains a node that is cordoned.
func (c *FromFlannel) empty(ctx context.Context, name string) error {
	n, err := c.node(ctx, name)
	if err != nil {
		return err
	}
	if err := c.cordon(ctx, n); err != nil {
		return err
	}
	return c.drain(ctx, name, c.Force)
}

// Forward changes a node to Weir.
func (c *FromFlannel) Forward(ctx context.Context, name string) error {
	c.say("%s: is drained", name)
	if err := c.empty(ctx, name); err != nil {
		return err
	}
	if err := c.label(ctx, name, deploy.NetworkChanging); err != nil {
		return err
	}
	if err := c.await(ctx, name+": flannel has ended", func(ctx context.Context) error {
		return c.gone(ctx, c.Flannel.Daemon.Namespace, flannel.AppLabel+"="+flannel.App, name)
	}); err != nil {
		return err
	}
	if err := c.label(ctx, name, deploy.NetworkWeir); err != nil {
		return err
	}
	c.say("%s: Weir begins", name)
	if err := c.await(ctx, name+": Weir has the node", func(ctx context.Context) error {
		_, err := c.agent(ctx, name)
		return err
	}); err != nil {
		return err
	}
	if err := c.networkAvailable(ctx, name); err != nil {
		return err
	}
	if err := c.renew(ctx, name); err != nil {
		return err
	}
	if err := c.await(ctx, name+": Weir has its pods", func(ctx context.Context) error { return c.well(ctx, name) }); err != nil {
		return err
	}
	if err := c.uncordon(ctx, name); err != nil {
		return err
	}
	c.say("%s: changed", name)
	return nil
}

// Back takes a node back to flannel.
func (c *FromFlannel) Back(ctx context.Context, name string) error {
	image, err := c.image(ctx, flannel.App)
	if err != nil {
		return err
	}
	c.say("%s: is drained", name)
	if err := c.empty(ctx, name); err != nil {
		return err
	}
	if err := c.endWeir(ctx, name); err != nil {
		return err
	}
	// flannel's tunnel has the port of Weir's.
	if err := c.clean(ctx, name, image); err != nil {
		return err
	}
	if err := c.label(ctx, name, ""); err != nil {
		return err
	}
	c.say("%s: flannel begins", name)
	if err := c.await(ctx, name+": flannel is ready", func(ctx context.Context) error {
		return c.ready(ctx, c.Flannel.Daemon.Namespace, flannel.AppLabel+"="+flannel.App, name)
	}); err != nil {
		return err
	}
	if err := c.renew(ctx, name); err != nil {
		return err
	}
	if err := c.uncordon(ctx, name); err != nil {
		return err
	}
	c.say("%s: has flannel", name)
	return nil
}
