// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/selector"
)

// bgpReport adds up what nodes say of BGP.
type bgpReport struct {
	nodes, silent         int // that use it; that do not say
	sessions, established int32
	objects               map[string]bool // by which there are sessions
	refused               map[string]bool // that nodes report
	cut                   bool            // a node has more than it names
}

// maxNamed is how many objects a NodeStatus names at most.
const maxNamed = 100

// note adds a node.
func (b *bgpReport) note(st *weirv1.NodeStatusStatus) {
	for _, p := range st.Problems {
		if name, is := strings.CutPrefix(p.Object, "BGPPeer "); is {
			if b.refused == nil {
				b.refused = map[string]bool{}
			}
			b.refused[name] = true
		}
	}
	s := st.BGP
	if s == nil {
		b.silent++
		return
	}
	if b.objects == nil {
		b.objects = map[string]bool{}
	}
	b.nodes++
	b.sessions += s.Sessions
	b.established += s.Established
	b.cut = b.cut || len(s.Objects) >= maxNamed
	for _, o := range s.Objects {
		b.objects[o] = true
	}
}

// readBGP says how many sessions are up, and which BGPPeers make none: where all nodes say by which
// they have some. Those that nodes refuse are named already.
func (r *report) readBGP(ctx context.Context, c *clientset.Clients, nodes []corev1.Node, all, live bool) error {
	b := &r.bgp
	if all {
		if err := r.readCalicoStatuses(ctx, c, nodes); err != nil {
			return err
		}
	}
	if b.nodes == 0 {
		return nil
	}
	when := "" // numbers wait for the heartbeat
	if !live {
		when = " at the nodes' last heartbeats"
	}
	r.components = append(r.components, fmt.Sprintf("BGP: %d/%d sessions established%s (see `weir bgp peers`)", b.established, b.sessions, when))
	if !all || b.silent > 0 || b.nodes < len(nodes) || b.cut {
		return nil
	}
	list, err := c.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("bgppeers")).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list bgppeers: %w", err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		if !b.objects[p.GetName()] && !b.refused[p.GetName()] {
			text := fmt.Sprintf("BGPPeer %s: no node makes a session by it: %s", p.GetName(), whyNoSession(p, nodes))
			if time.Since(changedAt(p)) < settling {
				text += " (it was written just now: nodes may not have said so yet)"
			}
			r.problems = addOnce(r.problems, text)
		}
	}
	return nil
}

// settling is how long nodes may take to say what they make of an object.
const settling = 30 * time.Second

// changedAt is when an object was written last.
func changedAt(u *unstructured.Unstructured) time.Time {
	last := u.GetCreationTimestamp().Time
	for _, f := range u.GetManagedFields() {
		if f.Time != nil && f.Time.After(last) {
			last = f.Time.Time
		}
	}
	return last
}

// readCalicoStatuses names objects that nobody fills.
func (r *report) readCalicoStatuses(ctx context.Context, c *clientset.Clients, nodes []corev1.Node) error {
	list, err := c.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("caliconodestatuses")).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list caliconodestatuses: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		node, _, _ := unstructured.NestedString(o.Object, "spec", "node")
		there := slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == node })
		switch {
		case !there:
			r.problems = append(r.problems, fmt.Sprintf("CalicoNodeStatus %s spec.node: there is no node %q: nobody fills it", o.GetName(), node))
		case r.bgp.nodes == 0 && r.bgp.silent > 0:
			r.problems = append(r.problems, fmt.Sprintf("CalicoNodeStatus %s: is filled while BGP is in use, and it is not", o.GetName()))
		}
	}
	return nil
}

// whyNoSession says what is the likely reason.
func whyNoSession(p *unstructured.Unstructured, nodes []corev1.Node) string {
	text := func(field string) string {
		s, _, _ := unstructured.NestedString(p.Object, "spec", field)
		return s
	}
	has := func(expression string) bool {
		s, err := selector.Parse(expression)
		return err != nil || slices.ContainsFunc(nodes, func(n corev1.Node) bool { return s.Matches(n.Labels) })
	}
	if n := text("node"); n != "" && !slices.ContainsFunc(nodes, func(have corev1.Node) bool { return have.Name == n }) {
		return "there is no node " + n
	}
	if s := text("nodeSelector"); s != "" && !has(s) {
		return "no node matches nodeSelector " + s
	}
	if s := text("peerSelector"); s != "" {
		if !has(s) {
			return "no node matches peerSelector " + s
		}
		return "the nodes that it is for and those that match peerSelector are the same, have no family in common, or have sessions by another object"
	}
	if a, ok := peerAddr(text("peerIP")); ok {
		family := "IPv4"
		if a.Is6() {
			family = "IPv6"
		}
		if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return carries(&n, a) }) {
			return fmt.Sprintf("its peer is at %s, and no node has an %s address", a, family)
		}
		return fmt.Sprintf("the nodes that it is for do not carry %s (ipv6Support), are the peer themselves, or have a session with %s by a BGPPeer that is before it by name", family, a)
	}
	return "see spec.peerIP and spec.peerSelector"
}

func peerAddr(text string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap.Addr().Unmap(), true
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return a.Unmap(), err == nil
}

// carries reports whether a node has an address of the family of a.
func carries(n *corev1.Node, a netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(have corev1.NodeAddress) bool {
		own, err := netip.ParseAddr(have.Address)
		return err == nil && have.Type == corev1.NodeInternalIP && own.Unmap().Is4() == a.Is4()
	})
}

// egressReport is what nodes say of egress gateways.
type egressReport struct {
	gateways []string // pods by which others leave, by node
	clients  []string // how many addresses leave by them, by node
	without  []string // pods of which nothing leaves
	down     []string // nodes that do not answer, by node
}

func (e *egressReport) note(node string, st *weirv1.NodeStatusStatus) {
	g := st.EgressGateways
	if g == nil {
		return
	}
	if g.Clients > 0 {
		e.clients = append(e.clients, fmt.Sprintf("%s: %d", node, g.Clients))
	}
	for into, names := range map[*[]string][]string{&e.gateways: g.Gateways, &e.without: g.Without, &e.down: g.Down} {
		for _, name := range names {
			*into = append(*into, node+": "+name)
		}
	}
}

func (e *egressReport) print(out io.Writer) {
	firstOf(out, "Egress gateways", e.gateways)
	firstOf(out, "Addresses of pods that leave the cluster by egress gateways alone", e.clients)
	firstOf(out, "Nodes with egress gateways that answer no longer; pods leave by others", e.down)
	firstOf(out, "Pods without an egress gateway: nothing of theirs leaves the cluster", e.without)
}
