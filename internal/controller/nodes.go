// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/ipam/mirror"
)

// lookAtBlocks does what the blocks of nodes and of load balancers are read for.
func (c *Controller) lookAtBlocks(ctx context.Context) error {
	blocks, err := c.blocks.List(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.collectNodes(ctx, blocks), mirror.ShowBalancers(ctx, c.cfg.Dynamic, blocks))
}

// collectNodes gives back what belongs to nodes that have been gone for the grace period.
func (c *Controller) collectNodes(ctx context.Context, blocks []weirv1.IPAMBlock) error {
	// From the API server's memory: what is missing there is looked up again before anything is
	// removed.
	nodes, err := c.cfg.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	c.fanout.SetNodes(len(nodes.Items))
	exists := map[string]bool{}
	for i := range nodes.Items {
		exists[nodes.Items[i].Name] = true
	}
	statuses, err := c.statuses.List(ctx)
	if err != nil {
		return err
	}
	blocksOf := map[string][]weirv1.IPAMBlock{}
	owners := map[string]bool{}
	for _, b := range blocks {
		if b.Spec.Node == weirv1.LoadBalancers || b.Spec.VirtualMachine != nil {
			continue
		}
		owners[b.Spec.Node] = true
		blocksOf[b.Spec.Node] = append(blocksOf[b.Spec.Node], b)
	}
	for _, s := range statuses {
		owners[s.Name] = true
	}
	now := c.now()
	for node := range c.gone {
		if exists[node] || !owners[node] {
			delete(c.gone, node)
		}
	}
	var errs []error
	for node := range owners {
		if exists[node] {
			continue
		}
		since, known := c.gone[node]
		if !known {
			c.gone[node] = now
			c.log.Info("a node is gone; what it had is given back after the grace period", "node", node,
				"blocks", len(blocksOf[node]), "grace", c.cfg.Grace)
			continue
		}
		if now.Sub(since) >= c.cfg.Grace {
			errs = append(errs, c.collectNode(ctx, node, blocksOf[node]))
		}
	}
	return errors.Join(errs...)
}

// collectNode removes the NodeStatus and those blocks of a node in which no pod has an address.
func (c *Controller) collectNode(ctx context.Context, node string, blocks []weirv1.IPAMBlock) error {
	_, err := c.cfg.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err == nil {
		delete(c.gone, node)
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look node %s up again: %w", node, err)
	}
	var used []podAddress
	if len(blocks) > 0 {
		if used, err = c.podAddresses(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, b := range blocks {
		if holder, taken := firstWithin(b.Spec.CIDR, used); taken {
			c.log.Warn("a block of a node that is gone stays: a pod still has an address in it; delete the pod",
				"block", b.Spec.CIDR, "node", node, "address", holder)
			continue
		}
		if err := c.blocks.Delete(ctx, b.Name, b.ResourceVersion); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
			continue
		}
		c.metrics.blocks.Inc()
		c.log.Info("gave a block back", "block", b.Spec.CIDR, "node", node, "gone for", c.now().Sub(c.gone[node]).Round(time.Second))
	}
	switch err := c.statuses.Delete(ctx, node, ""); {
	case err == nil:
		c.metrics.statuses.Inc()
	case !apierrors.IsNotFound(err):
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// podAddress is what the status of a pod says, which its node writes.
type podAddress struct {
	netip.Addr
	created time.Time // the pod
}

// podAddresses returns the addresses of all pods that have not finished, as the API server's
// storage has them now.
func (c *Controller) podAddresses(ctx context.Context) ([]podAddress, error) {
	var out []podAddress
	opts := metav1.ListOptions{Limit: 500}
	for {
		pods, err := c.cfg.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list pods: %w", err)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			for _, ip := range p.Status.PodIPs {
				if a, err := netip.ParseAddr(ip.IP); err == nil {
					out = append(out, podAddress{a.Unmap(), p.CreationTimestamp.Time})
				}
			}
		}
		if opts.Continue = pods.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

// firstWithin returns an address that is inside of the CIDR. A CIDR that cannot be read holds
// nothing.
func firstWithin(cidr string, addrs []podAddress) (netip.Addr, bool) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		if p.Contains(a.Addr) {
			return a.Addr, true
		}
	}
	return netip.Addr{}, false
}
