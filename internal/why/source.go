// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/reason"
)

// noteSource names the grant by which a pod sends with a source that is not its own, or says what
// it lacks. granted is also true of a pod's own address.
func (i *inquiry) noteSource(ctx context.Context) (granted bool, err error) {
	own, source := i.ask.Sender, i.ask.Source
	if !own.IsValid() || i.ask.Received != nil {
		return true, nil
	}
	granted = i.state.SendsAs(i.in.IfIndex, source).IsValid()
	var note string
	_, found, err := i.agent.Explain(ctx, i.state, func(c *model.Cluster) (policy.Explanation, bool) {
		ep := c.Local.Endpoints[own]
		if ep != nil {
			note = fmt.Sprintf("pod %s sends with %s, which is not its own: %s", ep.Pod, source, grantOf(c, ep.Pod, source, granted))
		}
		return policy.Explanation{}, ep != nil
	})
	if err != nil || !found {
		return granted, err
	}
	i.answer.Notes = append(i.answer.Notes, note)
	if spoofed := i.result.Reason == reason.Spoofed; i.refusedBy() && spoofed == granted {
		i.warn("by the node's state the source %s is granted: %v, and the packet is dropped for its source: %v", source, granted, spoofed)
	}
	return granted, nil
}

// grantOf says of a source what the pod asks for and what its namespace grants.
func grantOf(c *model.Cluster, pod model.Name, source netip.Addr, granted bool) string {
	containing := func(list []netip.Prefix) netip.Prefix {
		if i := slices.IndexFunc(list, func(p netip.Prefix) bool { return p.Contains(source) }); i >= 0 {
			return list[i]
		}
		return netip.Prefix{}
	}
	namespace := c.Namespaces[pod.Namespace]
	var asked, allowed netip.Prefix
	for _, p := range c.Pods.Sources(pod) {
		if !p.Contains(source) {
			continue
		}
		if asked = p; namespace.Grants(p) {
			allowed = containing(namespace.SourceGrants)
			break
		}
	}
	switch {
	case granted:
		return fmt.Sprintf("it asks for %s (%s), and namespace %s grants %s (%s)", asked, model.AnnotationSources, pod.Namespace, allowed, model.AnnotationSourceGrants)
	case !asked.IsValid():
		return "it does not ask for that by the annotation " + model.AnnotationSources
	case !allowed.IsValid():
		return fmt.Sprintf("it asks for %s, which namespace %s does not grant by the annotation %s", asked, pod.Namespace, model.AnnotationSourceGrants)
	case !c.Settings.SourceSpoofing:
		return fmt.Sprintf("it asks for %s, which namespace %s grants, and workloadSourceSpoofing is not Any", asked, pod.Namespace)
	}
	return fmt.Sprintf("it asks for %s, which namespace %s grants; never granted are addresses of nodes, pods, pools and cluster IPs, and special ones, nor anything to a pod that leaves by egress gateways or whose network is another plugin's", asked, pod.Namespace)
}
