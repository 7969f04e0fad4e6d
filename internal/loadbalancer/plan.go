// SPDX-License-Identifier: Apache-2.0

// Package loadbalancer gives addresses of IPPools to Services of type LoadBalancer.
//
// Who has which address is kept in IPAMBlocks whose node is weirv1.LoadBalancers, and nowhere else:
// an update of a block names the version that it was made from, so two controllers cannot give one
// address twice, and one that starts anew goes on where the last one ended. The Services' status
// follows.
package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// Class is the loadBalancerClass of Services that ask for an address of Weir.
const Class = "weir.dev/load-balancer"

// Mode says which Services get an address (KubeControllersConfiguration
// spec.controllers.loadBalancer.assignIPs).
type Mode string

// The modes. Off gives no new address; what was given stays.
const (
	All       Mode = "AllServices"
	Requested Mode = "RequestedServicesOnly"
	Off       Mode = "Off"
)

// view is what an assignment is made from.
type view struct {
	mode         Mode
	pools        []*lbPool // for load balancers, the oldest first
	reservations []netip.Prefix
	namespaces   map[string]map[string]string // labels by name
}

// lbPool is a pool whose addresses Services may have.
type lbPool struct {
	model.Pool
	namespaces *selector.Selector
}

// newView keeps the pools that load balancers may use. Of two that overlap the later one is not
// used, as with pods; all are the pools of every use, the oldest first.
func newView(mode Mode, all []model.Pool, reservations []netip.Prefix, namespaces map[string]map[string]string) *view {
	v := &view{mode: mode, reservations: reservations, namespaces: namespaces}
	for _, p := range ipam.UsablePools(all) {
		if !p.LoadBalancer || !p.Gives() {
			continue
		}
		sel, err := selector.Parse(p.NamespaceSelector)
		if err != nil {
			continue // nobody matches what cannot be read
		}
		v.pools = append(v.pools, &lbPool{p, sel})
	}
	return v
}

// wants reports whether a Service is ours to serve.
func (v *view) wants(s *corev1.Service, r *request, holds bool) bool {
	switch {
	case s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil:
		return false
	case s.Spec.LoadBalancerClass != nil:
		return ofOurClass(s)
	case holds:
		return true
	case len(v.pools) == 0 || v.mode == Off || v.mode == Requested && !r.explicit():
		return false
	}
	// Without a class another controller may have been quicker.
	return !v.foreign(s)
}

func ofOurClass(s *corev1.Service) bool {
	return s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass == Class
}

// foreign reports whether somebody else gave the Service its addresses: none of them is of our
// pools.
func (v *view) foreign(s *corev1.Service) bool {
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil && v.poolOf(a) != nil {
			return false
		}
	}
	return len(s.Status.LoadBalancer.Ingress) > 0
}

func (v *view) poolOf(a netip.Addr) *lbPool {
	for _, p := range v.pools {
		if p.CIDR.Contains(a) {
			return p
		}
	}
	return nil
}

func (v *view) reserved(a netip.Addr) bool {
	return slices.ContainsFunc(v.reservations, func(p netip.Prefix) bool { return p.Contains(a) })
}

// poolsFor returns the pools of a family that a Service may have an address of.
func (v *view) poolsFor(s *corev1.Service, r *request, v6 bool) ([]*lbPool, error) {
	names, field := r.pools4, annotationPools4
	if v6 {
		names, field = r.pools6, annotationPools6
	}
	var out, family []*lbPool
	for _, p := range v.pools {
		if p.CIDR.Addr().Is6() == v6 {
			family = append(family, p)
		}
	}
	if len(names) > 0 {
		for _, n := range names {
			i := slices.IndexFunc(family, func(p *lbPool) bool { return p.Name == n || p.CIDR.String() == n })
			if i < 0 {
				return nil, fmt.Errorf("annotation %s: there is no usable IPPool %q of this family with allowedUses LoadBalancer", field, n)
			}
			if !family[i].namespaces.Matches(v.namespaces[s.Namespace]) {
				return nil, fmt.Errorf("annotation %s: the namespaceSelector of IPPool %s does not match namespace %s", field, family[i].Name, s.Namespace)
			}
			out = append(out, family[i])
		}
		return out, nil
	}
	for _, p := range family {
		if !p.Manual && p.namespaces.Matches(v.namespaces[s.Namespace]) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no IPPool with allowedUses LoadBalancer gives %s addresses to namespace %s", familyName(v6), s.Namespace)
	}
	return out, nil
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// assignment is what a Service is to have.
type assignment struct {
	addrs []netip.Addr // in the order of the Service's families
	errs  []string     // why it lacks one
}

// assign chooses the addresses of one Service and enters them in the book. What the Service has
// stays while its request allows it.
func (v *view) assign(s *corev1.Service, r *request, b *book) assignment {
	var out assignment
	if r.err != nil {
		return assignment{addrs: b.of(s.UID), errs: []string{r.err.Error()}}
	}
	families := s.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && a.Is6() {
			families[0] = corev1.IPv6Protocol
		}
	}
	for _, family := range families {
		v6 := family == corev1.IPv6Protocol
		addr, err := v.assignFamily(s, r, b, v6)
		if err != nil {
			prefers := s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack
			if !prefers || r.wantsAddr(v6).IsValid() || len(families) == 1 {
				out.errs = append(out.errs, err.Error())
				continue
			}
			out.errs = append(out.errs, preferred+err.Error())
			continue
		}
		out.addrs = append(out.addrs, addr)
	}
	// PreferDualStack is content with one family.
	if len(out.addrs) > 0 {
		out.errs = slices.DeleteFunc(out.errs, func(e string) bool { return strings.HasPrefix(e, preferred) })
	}
	for i := range out.errs {
		out.errs[i] = strings.TrimPrefix(out.errs[i], preferred)
	}
	for _, family := range []bool{false, true} {
		if a := r.wantsAddr(family); a.IsValid() && !slices.Contains(families, familyOf(family)) {
			out.errs = append(out.errs, fmt.Sprintf("%s %s: the Service has no %s (spec.ipFamilies)", r.from, a, familyName(family)))
		}
	}
	return out
}

// preferred marks an error that does not count when the other family has an address.
const preferred = "\x00"

func familyOf(v6 bool) corev1.IPFamily {
	if v6 {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func (v *view) assignFamily(s *corev1.Service, r *request, b *book, v6 bool) (netip.Addr, error) {
	var have netip.Addr
	for _, a := range b.of(s.UID) {
		if a.Is6() == v6 && !have.IsValid() {
			have = a
		}
	}
	if want := r.wantsAddr(v6); want.IsValid() {
		if slices.Contains(b.of(s.UID), want) {
			return want, nil
		}
		return want, v.claimRequested(s, r, b, want)
	}
	pools, err := v.poolsFor(s, r, v6)
	if have.IsValid() && (len(r.named(v6)) == 0 || inPools(pools, have)) {
		return have, nil
	}
	if err != nil {
		return netip.Addr{}, err
	}
	// An address that the status names already is kept where it is free: the blocks may have been
	// lost.
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil && a.Is6() == v6 && inPools(pools, a) && !v.reserved(a) && b.claim(v.poolOf(a), a, s) == nil {
			return a, nil
		}
	}
	for _, p := range pools {
		if a, ok := b.claimAny(p, s, v.reserved, v.reservations); ok {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no free %s address in IPPool %s; add a pool, or delete Services", familyName(v6), poolNames(pools))
}

// claimRequested enters an address that was asked for.
func (v *view) claimRequested(s *corev1.Service, r *request, b *book, want netip.Addr) error {
	p := v.poolOf(want)
	if p == nil {
		return fmt.Errorf("%s: %s lies in no usable IPPool with allowedUses LoadBalancer", r.from, want)
	}
	if !p.namespaces.Matches(v.namespaces[s.Namespace]) {
		return fmt.Errorf("%s: %s lies in IPPool %s, whose namespaceSelector does not match namespace %s", r.from, want, p.Name, s.Namespace)
	}
	if err := b.claim(p, want, s); err != nil {
		return fmt.Errorf("%s: %w", r.from, err)
	}
	return nil
}

func inPools(pools []*lbPool, a netip.Addr) bool {
	return slices.ContainsFunc(pools, func(p *lbPool) bool { return p.CIDR.Contains(a) })
}

func poolNames(pools []*lbPool) string {
	var names []string
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
