// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// TestReadMarkOfPods: what the agent has read of DNS goes to a pod by a mark, past policy that it
// passed before. Sockets of pods that bear the mark get nowhere by it.
func TestReadMarkOfPods(t *testing.T) {
	t.Parallel()
	inEBPF(t, testReadMarkOfPods)
}

func testReadMarkOfPods(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.apply()
	get := func(to *pod, mark int) answer {
		at := netip.AddrPortFrom(to.local.Addrs[0], 8080).String()
		return f.a.call(request{Op: "get", Net: "tcp", Addr: at, Mark: mark, Timeout: 500})
	}
	for _, p := range []*pod{f.b, f.c} { // here, and on the other node
		if a := get(p, abi.MarkRead); a.Err != "" {
			t.Fatalf("%s, before there is a policy: %s", p.name, a.Err)
		}
	}
	for _, app := range []string{"b", "c"} {
		nobody := allow(app)
		nobody.Ingress = nil
		f.put(nobody)
	}
	f.apply()
	for _, p := range []*pod{f.b, f.c} {
		for _, mark := range []int{0, abi.MarkRead} {
			if a := get(p, mark); a.Err == "" {
				t.Errorf("a connection to %s with mark %#x is made, which its policy denies", p.name, mark)
			}
		}
	}
}
