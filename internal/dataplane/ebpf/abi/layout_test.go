// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"reflect"
	"testing"
)

// The generic structures have the layout that the compiler gave the C ones.
func TestLayoutsAreThoseOfC(t *testing.T) {
	for _, pair := range []struct{ here, c any }{
		{AddrValue[Ip4]{}, WeirAddrValue{}}, {PrefixKey[Ip4]{}, WeirPrefixKey{}}, {RouteValue[Ip4]{}, WeirRouteValue{}}, {GatewayList[Ip4]{}, WeirGatewayList{}}, {GatewayKey[Ip4]{}, WeirGatewayKey{}}, {EgressKey[Ip4]{}, WeirEgressKey{}}, {SourceKey[Ip4]{}, WeirSourceKey{}}, {SourceKey[Ip6]{}, Weir6SourceKey{}},
		{SvcKey[Ip4]{}, WeirSvcKey{}}, {SvcValue[Ip4]{}, WeirSvcValue{}}, {BackendKey[Ip4]{}, WeirBackendKey{}},
		{Backend[Ip4]{}, WeirBackend{}}, {RangeKey[Ip4]{}, WeirRangeKey{}}, {LiveKey[Ip4]{}, WeirLiveKey{}}, {Settings[Ip4]{}, WeirSettings{}},
		{SockKey[Ip4]{}, WeirSockKey{}}, {SockValue[Ip4]{}, WeirSockValue{}}, {SockKey[Ip6]{}, Weir6SockKey{}}, {SockValue[Ip6]{}, Weir6SockValue{}},
		{AddrValue[Ip6]{}, Weir6AddrValue{}}, {PrefixKey[Ip6]{}, Weir6PrefixKey{}}, {RouteValue[Ip6]{}, Weir6RouteValue{}}, {GatewayList[Ip6]{}, Weir6GatewayList{}}, {GatewayKey[Ip6]{}, Weir6GatewayKey{}}, {EgressKey[Ip6]{}, Weir6EgressKey{}},
		{SvcKey[Ip6]{}, Weir6SvcKey{}}, {SvcValue[Ip6]{}, Weir6SvcValue{}}, {BackendKey[Ip6]{}, Weir6BackendKey{}},
		{Backend[Ip6]{}, Weir6Backend{}}, {RangeKey[Ip6]{}, Weir6RangeKey{}}, {LiveKey[Ip6]{}, Weir6LiveKey{}}, {Settings[Ip6]{}, Weir6Settings{}},
		{FlowKey[Ip4]{}, WeirFlowKey{}}, {FlowValue[Ip4]{}, WeirFlowValue{}}, {FlowKey[Ip6]{}, Weir6FlowKey{}}, {FlowValue[Ip6]{}, Weir6FlowValue{}},
	} {
		compareLayout(t, reflect.TypeOf(pair.here), reflect.TypeOf(pair.c))
	}
}

func compareLayout(t *testing.T, here, c reflect.Type) {
	t.Helper()
	if here.Size() != c.Size() {
		t.Errorf("%s has %d bytes, %s %d", here, here.Size(), c, c.Size())
	}
	names := 0
	for i := range c.NumField() {
		f := c.Field(i)
		if f.Name == "_" {
			continue
		}
		names++
		mine, ok := here.FieldByName(f.Name)
		if !ok {
			t.Errorf("%s has no field %s", here, f.Name)
			continue
		}
		if mine.Offset != f.Offset || mine.Type.Size() != f.Type.Size() {
			t.Errorf("%s.%s is %d bytes at %d, in C %d at %d", here, f.Name, mine.Type.Size(), mine.Offset, f.Type.Size(), f.Offset)
		}
	}
	if here.NumField() != names {
		t.Errorf("%s has %d fields, %s has %d", here, here.NumField(), c, names)
	}
}
