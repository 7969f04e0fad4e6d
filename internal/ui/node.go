// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// Node is one node.
type Node struct {
	Name      string     `json:"name"`
	State     string     `json:"state"` // ready, not ready, degraded, changing, clock ahead, silent, no agent
	Ready     bool       `json:"ready"`
	Why       string     `json:"why,omitempty"` // it is not ready
	Dataplane string     `json:"dataplane,omitempty"`
	Address   string     `json:"address,omitempty"`
	Version   string     `json:"version,omitempty"`
	Heartbeat *time.Time `json:"heartbeat,omitempty"` // when the agent reported last; nil = never
	Pods      int32      `json:"pods"`
	Services  int32      `json:"services"`
	Policies  int32      `json:"policies"`
	Drops     []Drop     `json:"drops"`    // the most frequent ones since the programs were loaded
	Tables    []Table    `json:"tables"`   // the fullest ones of a fixed size, the fullest first
	Problems  []string   `json:"problems"` // of the node itself: a table that is nearly full is one
}

// Drop counts packets that a node dropped.
type Drop struct {
	Reason  string `json:"reason"` // bpf/reasons.h
	Rule    string `json:"rule,omitempty"`
	Packets int64  `json:"packets"`
}

// Table is how full a table of the data plane is.
type Table struct {
	Name     string `json:"name"`
	Family   string `json:"family,omitempty"` // ipv4 or ipv6; empty = both share it
	Percent  int32  `json:"percent"`
	Capacity int64  `json:"capacity"` // entries
}

// Report adds what the node's agent reported.
func (n *Node) Report(st *weirv1.NodeStatusStatus) {
	if at := st.LastHeartbeat; at != nil {
		n.Heartbeat = &at.Time
	}
	for _, d := range st.Drops {
		n.Drops = append(n.Drops, Drop{Reason: d.Reason, Rule: d.Rule, Packets: d.Packets})
	}
	for _, t := range st.Tables {
		n.Tables = append(n.Tables, Table{Name: t.Name, Family: t.Family, Percent: t.Percent, Capacity: t.Capacity})
	}
	for _, p := range st.Problems {
		if p.Object == "Node "+n.Name {
			n.Problems = append(n.Problems, p.String())
		}
	}
}
