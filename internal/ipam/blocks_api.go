// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// APIBlocks keeps blocks as IPAMBlock objects: their name is made from the CIDR, so that creating
// one claims it.
type APIBlocks struct {
	node   string
	client client.Resource[weirv1.IPAMBlock]
}

// NewAPIBlocks returns the blocks of the API, for one node to claim.
func NewAPIBlocks(d dynamic.Interface, node string) *APIBlocks {
	return &APIBlocks{node: node, client: client.Blocks(d)}
}

// List implements Blocks. Objects whose CIDR cannot be read are left out, and so are the addresses
// of virtual machines, of which nothing is given.
func (b *APIBlocks) List(ctx context.Context) ([]Block, error) {
	list, err := b.client.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Block, 0, len(list))
	for _, o := range list {
		if block, ok := ConvertBlock(&o); ok && block.Machine == "" {
			out = append(out, block)
		}
	}
	return out, nil
}

// ConvertBlock reads an IPAMBlock; false: its CIDR cannot be read. Allocations that cannot be read,
// or lie outside of it, are left out.
func ConvertBlock(o *weirv1.IPAMBlock) (Block, bool) {
	cidr, err := netip.ParsePrefix(o.Spec.CIDR)
	if err != nil || cidr != cidr.Masked() {
		return Block{}, false
	}
	out := Block{CIDR: cidr, Node: o.Spec.Node, Pool: o.Spec.Pool}
	if vm := o.Spec.VirtualMachine; vm != nil {
		out.Machine = vm.Name
	}
	for _, a := range o.Spec.Allocations {
		addr, err := netip.ParseAddr(a.Address)
		namespace, name, ok := strings.Cut(a.Service, "/")
		if err != nil || !ok || !cidr.Contains(addr) {
			continue
		}
		out.Services = append(out.Services, ServiceAddress{Address: addr, Service: model.Name{Namespace: namespace, Name: name}, UID: a.UID})
	}
	return out, true
}

// Claim implements Blocks.
func (b *APIBlocks) Claim(ctx context.Context, cidr netip.Prefix, pool string) error {
	_, err := b.client.Create(ctx, &weirv1.IPAMBlock{
		ObjectMeta: metav1.ObjectMeta{Name: weirv1.BlockName(cidr)},
		Spec:       weirv1.IPAMBlockSpec{CIDR: cidr.String(), Node: b.node, Pool: pool},
	})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %v", ErrTaken, err)
	}
	return err
}

// Release implements Blocks.
func (b *APIBlocks) Release(ctx context.Context, cidr netip.Prefix) error {
	name := weirv1.BlockName(cidr)
	have, err := b.client.Get(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if have.Spec.Node != b.node {
		return fmt.Errorf("IPAMBlock %s belongs to node %s, not to %s", name, have.Spec.Node, b.node)
	}
	err = b.client.Delete(ctx, name, have.ResourceVersion)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

var _ Blocks = (*APIBlocks)(nil)

var errNoFile = errors.New("there is no allocation of this address on this node")
