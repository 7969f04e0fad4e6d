// SPDX-License-Identifier: Apache-2.0

// Package takeover takes a node over from the network plugin that it has had, whichever that is:
// the packages fromcalico and fromflannel beside it know what each of these leaves. It also says
// how nodes that still have the plugin are reached. A node that is not taken over has neither.
package takeover

import (
	"context"
	"errors"
	"log/slog"

	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/agent/fromcalico"
	"github.com/weir-net/weir/internal/agent/fromcalico/remains"
	"github.com/weir-net/weir/internal/agent/fromflannel"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/nodestate"
)

// Node is a node that may be taken over.
type Node struct {
	calico  *fromcalico.Node
	flannel *fromflannel.Node
}

// Open returns the node as the environment of its agent says.
func Open(environ []string, node, confDir string, api dynamic.Interface, log *slog.Logger) *Node {
	return &Node{calico: fromcalico.Open(environ, node, confDir, api, log.With("part", "from Calico")),
		flannel: fromflannel.Open(environ, node, confDir, api, log.With("part", "from flannel"))}
}

// Begin has the node be Weir's. It is called before the endpoints of the node are restored, and
// before anything is written that the other plugin would write otherwise.
func (n *Node) Begin(ctx context.Context, s *cni.Server) error {
	if n.calico == nil {
		if err := remains.EndIPIP(); err != nil {
			return err
		}
	}
	return errors.Join(n.flannel.Begin(ctx), n.calico.Begin(ctx, s))
}

// Ready says what is missing until pods can be started.
func (n *Node) Ready() error { return n.calico.Ready() }

// Run removes what the other plugin left, once ready says that the data plane is in force, and
// follows nodes that have it.
func (n *Node) Run(ctx context.Context, ready func() error) error {
	if n.flannel != nil {
		return n.flannel.Run(ctx)
	}
	return n.calico.Run(ctx, ready)
}

// Blocks returns the blocks of the node; inner is where they are claimed with Weir.
func (n *Node) Blocks(inner ipam.Blocks) ipam.Blocks { return n.calico.Blocks(inner) }

// Sessions are the BGP sessions of the node.
func (n *Node) Sessions(s *nodestate.BGP) *nodestate.BGP { return n.calico.Sessions(s) }

// Beside says at which MAC addresses nodes with the other plugin take frames of the tunnel; nil =
// there are none.
func (n *Node) Beside() func(node string) ([6]byte, error) {
	switch {
	case n.calico != nil:
		return hostnet.CalicoMAC
	case n.flannel != nil:
		return n.flannel.MAC
	}
	return nil
}
