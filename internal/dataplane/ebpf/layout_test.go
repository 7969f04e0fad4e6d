package ebpf

import (
	"reflect"
	"testing"
)

// The generic structures have the layout that the compiler gave the C ones.
func TestLayoutsAreThoseOfC(t *testing.T) {
	for _, pair := range []struct{ here, c any }{
		{addrValue[ip4]{}, weirAddrValue{}}, {prefixKey[ip4]{}, weirPrefixKey{}}, {routeValue[ip4]{}, weirRouteValue{}},
		{svcKey[ip4]{}, weirSvcKey{}}, {svcValue[ip4]{}, weirSvcValue{}}, {backendKey[ip4]{}, weirBackendKey{}},
		{backend[ip4]{}, weirBackend{}}, {rangeKey[ip4]{}, weirRangeKey{}}, {liveKey[ip4]{}, weirLiveKey{}}, {settings[ip4]{}, weirSettings{}},
		{sockKey[ip4]{}, weirSockKey{}}, {sockValue[ip4]{}, weirSockValue{}}, {sockKey[ip6]{}, weir6SockKey{}}, {sockValue[ip6]{}, weir6SockValue{}},
		{addrValue[ip6]{}, weir6AddrValue{}}, {prefixKey[ip6]{}, weir6PrefixKey{}}, {routeValue[ip6]{}, weir6RouteValue{}},
		{svcKey[ip6]{}, weir6SvcKey{}}, {svcValue[ip6]{}, weir6SvcValue{}}, {backendKey[ip6]{}, weir6BackendKey{}},
		{backend[ip6]{}, weir6Backend{}}, {rangeKey[ip6]{}, weir6RangeKey{}}, {liveKey[ip6]{}, weir6LiveKey{}}, {settings[ip6]{}, weir6Settings{}},
		{flowKey[ip4]{}, weirFlowKey{}}, {flowValue[ip4]{}, weirFlowValue{}}, {flowKey[ip6]{}, weir6FlowKey{}}, {flowValue[ip6]{}, weir6FlowValue{}},
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
