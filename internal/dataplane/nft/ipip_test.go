// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

// TestWithoutIPIP: what asks for IP in IP gets VXLAN, and the state that was given stays as it is.
func TestWithoutIPIP(t *testing.T) {
	t.Parallel()
	pod, block := netip.MustParseAddr("10.244.9.9"), netip.MustParsePrefix("10.244.2.0/26")
	s := nodestate.New()
	s.Routes[block] = nodestate.Route{Pool: true, Tunnel: true, IPIP: true}
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrPod, Tunnel: true, IPIP: true}
	if got, was := withoutIPIP(s); got != s || was {
		t.Error("a state that takes no IP in IP was changed")
	}
	s.Settings.IPIP = nodestate.IPIP{Accept: true, HandOn: true, MTU: 1480}
	got, was := withoutIPIP(s)
	if r, a := got.Routes[block], got.Addrs[pod]; !was || r.IPIP || a.IPIP || !r.Tunnel || !a.Tunnel || got.Settings.IPIP != (nodestate.IPIP{}) || !got.NeedsTunnel() {
		t.Errorf("%+v %+v %+v", r, a, got.Settings.IPIP)
	}
	if !s.Routes[block].IPIP || !s.Addrs[pod].IPIP || !s.Settings.IPIP.Accept {
		t.Error("the state that was given was changed")
	}
}
