// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/internal/model"
)

// Block is a block of addresses as Calico stores it.
type Block struct {
	Name string // of its IPAMBlock
	CIDR netip.Prefix
	// Node is the node that it has affinity to; empty = none.
	Node string
	// Allocations are the addresses in use, in order.
	Allocations []Allocation
}

// Allocation is an address in use.
type Allocation struct {
	Address netip.Addr
	// Handle names it: for a pod the name of Calico's network, a dot, and the container.
	Handle string
	// Node has it; it can be another one than the block's.
	Node string
	// Namespace and Pod have it; empty for an address of a node's tunnel.
	Namespace, Pod string
	// Kind of an address that no pod has: vxlanTunnelAddress, for one.
	Kind string
}

// blockSpec is the part of an IPAMBlock's spec that says who has what.
type blockSpec struct {
	CIDR        string   `json:"cidr"`
	Affinity    string   `json:"affinity"`
	Allocations []*int64 `json:"allocations"` // indexes of Attributes, by the address' place in the block
	Attributes  []struct {
		Handle    string            `json:"handle_id"`
		Secondary map[string]string `json:"secondary"`
	} `json:"attributes"`
	Deleted bool `json:"deleted"`
}

// ReadBlock reads an IPAMBlock of crd.projectcalico.org/v1. ok is false for one that is being
// deleted.
func ReadBlock(u *unstructured.Unstructured) (b Block, ok bool, err error) {
	var object struct {
		Spec blockSpec `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err != nil {
		return Block{}, false, fmt.Errorf("read IPAMBlock %s: %w", u.GetName(), err)
	}
	s := object.Spec
	if s.Deleted {
		return Block{}, false, nil
	}
	cidr, err := netip.ParsePrefix(s.CIDR)
	if err != nil || cidr != cidr.Masked() {
		return Block{}, false, fmt.Errorf("read IPAMBlock %s: spec.cidr %q is not a network", u.GetName(), s.CIDR)
	}
	b = Block{Name: u.GetName(), CIDR: cidr}
	if node, is := strings.CutPrefix(s.Affinity, "host:"); is {
		b.Node = node
	}
	address := cidr.Addr()
	for _, index := range s.Allocations {
		if index != nil {
			if *index < 0 || int(*index) >= len(s.Attributes) {
				return Block{}, false, fmt.Errorf("read IPAMBlock %s: address %s has attribute %d of %d", u.GetName(), address, *index, len(s.Attributes))
			}
			a := s.Attributes[*index]
			b.Allocations = append(b.Allocations, Allocation{Address: address, Handle: a.Handle, Node: a.Secondary["node"],
				Namespace: a.Secondary["namespace"], Pod: a.Secondary["pod"], Kind: a.Secondary["type"]})
		}
		address = address.Next()
	}
	if !cidr.Contains(address.Prev()) {
		return Block{}, false, fmt.Errorf("read IPAMBlock %s: it has %d addresses, more than %s", u.GetName(), len(s.Allocations), cidr)
	}
	return b, true, nil
}

// nodes finds what each node has, and which pods do not come back by themselves.
func (p *planner) nodes() {
	of := map[string]*Node{}
	for _, n := range p.Nodes {
		of[n.Name] = &Node{Name: n.Name}
	}
	for i := range p.Pods {
		pod := &p.Pods[i]
		if pod.Spec.HostNetwork || of[pod.Spec.NodeName] == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		of[pod.Spec.NodeName].Pods++
		p.pod(pod)
	}
	for _, u := range p.ofKind("IPAMBlock") {
		b, ok, err := ReadBlock(u)
		switch {
		case err != nil:
			p.differs("IPAMBlock "+u.GetName(), "spec", "", err.Error(), "calicoctl ipam check")
		case ok && of[b.Node] != nil:
			of[b.Node].Blocks = append(of[b.Node].Blocks, b)
		}
	}
	for _, n := range of {
		slices.SortFunc(n.Blocks, func(a, b Block) int { return a.CIDR.Compare(b.CIDR) })
		p.plan.Nodes = append(p.plan.Nodes, *n)
	}
	slices.SortFunc(p.plan.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
}

// fixed are the annotations by which a pod chooses its addresses.
var fixed = []string{"cni.projectcalico.org/ipAddrs", noIPAM, "cni.projectcalico.org/ipv4pools",
	"cni.projectcalico.org/ipv6pools", model.AnnotationFloating}

const noIPAM = "cni.projectcalico.org/ipAddrsNoIpam"

func (p *planner) pod(pod *corev1.Pod) {
	object := "Pod " + pod.Namespace + "/" + pod.Name
	if p.inPlace {
		if value := pod.Annotations[noIPAM]; value != "" {
			p.stop(object, "metadata.annotations["+noIPAM+"]", value, "has no effect with Weir", "remove it, and make the pod again")
		}
		if value := pod.Annotations[model.AnnotationFloating]; value != "" {
			p.differs(object, "metadata.annotations["+model.AnnotationFloating+"]", value, "counts with Weir where its namespace grants it, too", "annotate the namespace with "+model.AnnotationFloatingGrants)
		}
		return
	}
	if len(pod.OwnerReferences) == 0 {
		p.differs(object, "metadata.ownerReferences", "", "has no controller: when its node is drained nobody makes it again", "make it again yourself, or give it a controller")
	}
	for _, name := range fixed {
		if value := pod.Annotations[name]; value != "" {
			p.differs(object, "metadata.annotations["+name+"]", value, "names addresses of Calico's, of which Weir gives none while their pool is disabled",
				"name others before the pod's node is drained")
		}
	}
}
