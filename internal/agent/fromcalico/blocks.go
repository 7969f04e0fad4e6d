// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"context"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/migrate/calico"
)

// Blocks returns the blocks of a node, which are claimed with Calico as well while other nodes have
// it: whoever makes Calico's object first has the block, so no two nodes get one, and Felix on
// other nodes knows the way to it. inner is where they are claimed with Weir.
func (n *Node) Blocks(inner ipam.Blocks) ipam.Blocks {
	if n == nil {
		return inner
	}
	return &blocks{Blocks: inner, node: n.name, api: n.api}
}

type blocks struct {
	ipam.Blocks
	node string
	api  dynamic.Interface
}

// Claim implements ipam.Blocks.
func (b *blocks) Claim(ctx context.Context, cidr netip.Prefix, pool string) error {
	blocks, affinities := b.api.Resource(calico.IPAMBlocks), b.api.Resource(calico.BlockAffinities)
	made := calico.SealedBlock(cidr, b.node)
	_, err := blocks.Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		have, getErr := blocks.Get(ctx, made.GetName(), metav1.GetOptions{})
		if getErr != nil {
			return fmt.Errorf("look at Calico's block %s: %w", cidr, getErr)
		}
		if has, ok, readErr := calico.ReadBlock(have); readErr != nil || !ok || has.Node != b.node {
			return fmt.Errorf("%w: it is Calico's on another node", ipam.ErrTaken)
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("claim block %s with Calico: %w", cidr, err)
	}
	if _, err := affinities.Create(ctx, calico.Affinity(cidr, b.node), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("claim block %s with Calico: %w", cidr, err)
	}
	return b.Blocks.Claim(ctx, cidr, pool)
}

// Release implements ipam.Blocks.
func (b *blocks) Release(ctx context.Context, cidr netip.Prefix) error {
	if err := b.Blocks.Release(ctx, cidr); err != nil {
		return err
	}
	for _, o := range []struct {
		api  dynamic.NamespaceableResourceInterface
		what *unstructured.Unstructured
	}{{b.api.Resource(calico.BlockAffinities), calico.Affinity(cidr, b.node)}, {b.api.Resource(calico.IPAMBlocks), calico.SealedBlock(cidr, b.node)}} {
		if err := o.api.Delete(ctx, o.what.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("give block %s back to Calico: %w", cidr, err)
		}
	}
	return nil
}
