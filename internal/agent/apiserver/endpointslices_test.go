// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

func TestAPIServersOfEndpointSlices(t *testing.T) {
	addrs := []model.ServiceEndpoint{{Addrs: ips("172.31.1.9")}, {Addrs: ips("172.31.1.8")}}
	servers := map[model.Name]*model.EndpointSlice{}
	UpdateSlices(Service, servers, map[model.Name]*model.EndpointSlice{
		{Namespace: "default", Name: "kubernetes"}: {Service: model.Name{Namespace: "default", Name: "kubernetes"},
			Ports: []model.EndpointPort{{Name: "https", Protocol: model.ProtocolTCP, Port: 6443}}, Endpoints: addrs},
		{Namespace: "evil", Name: "kubernetes"}: {Service: model.Name{Namespace: "evil", Name: "kubernetes"},
			Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 1}}, Endpoints: addrs},
	})
	if got, want := Addresses(servers), []string{"172.31.1.8:6443", "172.31.1.9:6443"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	UpdateSlices(Service, servers, map[model.Name]*model.EndpointSlice{{Namespace: "default", Name: "other"}: nil})
	if len(Addresses(servers)) != 2 {
		t.Error("another slice's end took them away")
	}
	UpdateSlices(Service, servers, map[model.Name]*model.EndpointSlice{{Namespace: "default", Name: "kubernetes"}: {Service: model.Name{Namespace: "default", Name: "x"}}})
	if got := Addresses(servers); got != nil {
		t.Errorf("%v of a slice that is another Service's now", got)
	}
}

// TestHostileServersOfSlices: of the Service's slices only the API servers' own says where an agent
// connects to.
func TestHostileServersOfSlices(t *testing.T) {
	hostile.Record(t, "an EndpointSlice that a tenant wrote says where agents look for the API server, and says it thousandfold", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	servers := map[model.Name]*model.EndpointSlice{}
	many := &model.EndpointSlice{Service: Service, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 6443}}}
	for i := range 1000 {
		many.Endpoints = append(many.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}})
	}
	UpdateSlices(Service, servers, map[model.Name]*model.EndpointSlice{{Namespace: "default", Name: "kubernetes-x"}: many})
	if got := Addresses(servers); got != nil {
		t.Errorf("%d servers", len(got))
	}
	UpdateSlices(Service, servers, map[model.Name]*model.EndpointSlice{Service: many})
	file := filepath.Join(t.TempDir(), "apiservers.json")
	s := NewDialer(file, slog.New(slog.DiscardHandler))
	s.Learn(Addresses(servers))
	if len(s.learned) != 16 || len(NewDialer(file, slog.New(slog.DiscardHandler)).learned) != 16 {
		t.Errorf("%d are kept", len(s.learned))
	}
}

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}
