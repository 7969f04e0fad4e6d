// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"context"
	"fmt"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/agent/fromcalico/remains"
	"github.com/weir-net/weir/internal/nodestate"
)

// adoptRoutes has what BIRD has learned stay until weir-bgp has learned it again. Where Calico
// speaks BGP there is a BGPConfiguration by now (weir install --from calico); elsewhere BIRD's
// routes are of one that has nothing to do with Calico.
func (n *Node) adoptRoutes(ctx context.Context) error {
	_, err := n.api.Resource(v3.SchemeGroupVersion.WithResource("bgpconfigurations")).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("see whether Calico speaks BGP: %w", err)
	}
	if err := remains.AdoptRoutes(); err != nil {
		return err
	}
	n.routed.Store(true)
	return nil
}

// Sessions are those of a node beside others with Calico. Of two nodes with Calico the one begins
// whose address is behind the other's as text, with Weir as a number. So that one of the two begins
// whatever they have, a node waits for the other only where both rules say so.
func (n *Node) Sessions(s *nodestate.BGP) *nodestate.BGP {
	if n == nil || s == nil {
		return s
	}
	out := *s
	out.Peers = slices.Clone(s.Peers)
	for i := range out.Peers {
		p := &out.Peers[i]
		p.Passive = p.Passive && p.Source.String() < p.Addr.String()
	}
	return &out
}
