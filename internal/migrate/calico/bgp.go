// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	variableBackend = "CALICO_NETWORKING_BACKEND" // of calico-node: what routes between nodes
	bird            = "bird"                      // a value of it: BGP
	never           = "Never"                     // of a pool's modes
	defaultASN      = 64512                       // Calico's
)

// backend is what routes between nodes. Calico's own script takes BIRD where nothing is said.
func (p *planner) backend() string {
	if p.Daemon == nil {
		return ""
	}
	if v := p.value(p.variable(variableBackend)); v != "" {
		return v
	}
	return bird
}

// speaksBGP says what becomes of the sessions of nodes.
func (p *planner) speaksBGP(object, value string) {
	if !p.inPlace {
		p.differs(object, variableBackend, value, "BIRD ends with Calico, and with it the routes that it brought; the sessions of BGPConfigurations and BGPPeers are weir-bgp's", howLong(false))
		return
	}
	p.differs(object, variableBackend, value, "the sessions of a node are those of BIRD until it changes, then weir-bgp's, with nodes of both kinds; routes stay in between", howLong(true))
	if id := p.value(p.variable("CALICO_ROUTER_ID")); id != "" {
		p.differs(object, "CALICO_ROUTER_ID", id, "the router ID of a node with Weir is its address", "")
	}
}

// howLong says where to read on, and of what routers have to do meanwhile.
func howLong(inPlace bool) string {
	const fields = "see docs/guides/bgp.md for what is in force"
	if inPlace {
		return "have graceful restart on at routers, so that they keep a node's routes meanwhile; " + fields
	}
	return fields
}

// mesh adds what Calico does without a BGPConfiguration: all nodes have sessions with each other.
// Weir speaks BGP only where an object says so.
func (p *planner) mesh() {
	if !p.inPlace || p.Daemon == nil {
		return
	}
	if p.backend() != bird {
		p.silent()
		return
	}
	for _, u := range p.plan.Copies {
		if u.GetKind() != "BGPConfiguration" || u.GetName() != "default" {
			continue
		}
		spec, _, _ := unstructured.NestedMap(u.Object, "spec")
		if spec == nil {
			spec = map[string]any{}
		}
		if spec["asNumber"] == nil {
			spec["asNumber"] = int64(defaultASN)
		}
		u.Object["spec"] = spec
		return
	}
	p.plan.Copies = append(p.plan.Copies, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "BGPConfiguration",
		"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"asNumber": int64(defaultASN), "nodeToNodeMeshEnabled": true}}})
}

// silent leaves out what is of BGP where Calico speaks none: Weir would.
func (p *planner) silent() {
	p.plan.Copies = slices.DeleteFunc(p.plan.Copies, func(u *unstructured.Unstructured) bool {
		of := u.GetKind() == "BGPConfiguration" || u.GetKind() == "BGPPeer"
		if of {
			p.differs(u.GetKind()+" "+u.GetName(), "", "", "is not copied: Calico speaks no BGP in this cluster ("+variableBackend+"), and Weir would", "")
		}
		return of
	})
}
