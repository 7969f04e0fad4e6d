// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"fmt"
	"strconv"
)

// How many replicas there are.
const (
	// DefaultMinNodes is the number of nodes from which on there is a fan-out.
	DefaultMinNodes = 100
	// least are for one that is gone, most for twice the nodes that Kubernetes is made for; the
	// admission policy weir-controller-objects has most, too.
	least, most = 2, 20
	// nodesOfReplica is how many nodes each replica is for.
	nodesOfReplica = 500
)

// MinNodes is the number of nodes from which on there is a fan-out. The zero value is 0: always.
type MinNodes struct {
	nodes int
	never bool
}

// ParseMinNodes reads the setting FANOUT_MIN_NODES: a number, or never; empty is the default.
func ParseMinNodes(text string) (MinNodes, error) {
	switch text {
	case "":
		return MinNodes{nodes: DefaultMinNodes}, nil
	case "never":
		return MinNodes{never: true}, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return MinNodes{}, fmt.Errorf("FANOUT_MIN_NODES %q is neither a number of nodes, such as 100, nor never", text)
	}
	return MinNodes{nodes: int(n)}, nil
}

// replicas returns how many there should be. What there is already stays until the nodes are fewer
// than nine tenths of those that it was made for: nodes that come and go start and end nothing.
func (m MinNodes) replicas(nodes, have int) int {
	switch {
	case m.never:
		return 0
	case nodes >= m.nodes:
	case have < least || 10*nodes < 9*m.nodes:
		return 0
	}
	up := ofNodes(nodes)
	if have <= up {
		return up
	}
	// As many as nine tenths of more nodes would be.
	return max(up, min(have, ofNodes(10*nodes/9)))
}

func ofNodes(nodes int) int {
	return min(max(least, (nodes+nodesOfReplica-1)/nodesOfReplica), most)
}
