// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/model"
)

// What comes to the node concerns the Services that name its address, not all whose endpoints name
// no node.
func TestWhatComesConcernsItsServicesAlone(t *testing.T) {
	t.Parallel()
	c := twoServices()
	for i := range 200 {
		svc, sl := name("many", fmt.Sprint("s", i)), name("many", fmt.Sprint("s", i, "-x"))
		c.Services[svc] = &model.Service{Name: svc, ClusterIPs: []netip.Addr{addr(fmt.Sprintf("10.96.1.%d", i))},
			Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
		c.Slices[sl] = &model.EndpointSlice{Name: sl, Service: svc, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 8080}},
			Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{addr(fmt.Sprintf("10.244.7.%d", i))}, Ready: true, Serving: true}}}
	}
	more := c.Slices[name("many", "s8-x")]
	more.Endpoints[0].Addrs = append(more.Endpoints[0].Addrs, addr("10.244.7.250"))
	more.Endpoints = append(more.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{addr("10.244.7.9")}, Ready: true, Serving: true})
	k := New()
	k.Update(c, model.AllDirty())
	concerned := func() map[service.Source]struct{} {
		out := map[service.Source]struct{}{}
		for src := range k.services.Touched {
			if !src.HostPorts {
				out[src] = struct{}{}
			}
		}
		return out
	}
	local := func() (d model.Dirty) {
		d.Add(model.KindLocal)
		return d
	}
	for _, step := range []struct {
		what string
		do   func()
		want int
	}{
		{"a pod of no Service", func() { here(c, "10.244.9.1") }, 0},
		{"a pod of one", func() { here(c, "10.244.7.5") }, 1},
		{"nothing", func() {}, 0},
		{"it goes", func() { delete(c.Local.Endpoints, addr("10.244.7.5")) }, 1},
		{"a pod of two", func() { here(c, "10.244.7.9") }, 2},
		{"the second of an endpoint's addresses", func() { here(c, "10.244.7.250") }, 1},
		{"an address of the node, which all may depend on", func() { c.Local.HostAddrs = append(slices.Clone(c.Local.HostAddrs), addr("10.244.7.8")) }, 202},
	} {
		step.do()
		got, _ := k.Update(c, local())
		if n := len(concerned()); n != step.want {
			t.Errorf("%s: %d Services were looked at, want %d", step.what, n, step.want)
		}
		anew, _ := New().Update(c, model.AllDirty())
		if got.String() != anew.String() {
			t.Errorf("%s: another state than one calculated anew", step.what)
		}
	}
}
