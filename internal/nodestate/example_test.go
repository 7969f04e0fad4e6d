// SPDX-License-Identifier: Apache-2.0

package nodestate_test

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A state is plain tables. Two of them are compared by the lines of their dumps, which is what a
// test shows that found another state than it wanted.
func ExampleDiff() {
	web := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: model.ProtocolTCP}
	pod := nodestate.Backend{Addr: netip.MustParseAddr("10.244.1.2"), Port: 8080, Local: true}

	before := nodestate.New()
	before.Frontends.Set(web, nodestate.Service{ID: web})
	before.Backends.Set(web, []nodestate.Backend{pod})

	pod.Port = 9090
	after := nodestate.New()
	after.Frontends.Set(web, nodestate.Service{ID: web})
	after.Backends.Set(web, []nodestate.Backend{pod})

	fmt.Print(nodestate.Diff(before, after))
	// Output:
	// -backend 10.96.0.1:80/tcp -> 10.244.1.2:8080 local
	// +backend 10.96.0.1:80/tcp -> 10.244.1.2:9090 local
}

// An assignment copies a table, however large it is: a copy that is kept does not see what is
// changed later.
func ExampleMap() {
	var backends nodestate.Map[string, int]
	backends.Set("web", 3)
	backends.Set("dns", 2)

	before := backends
	backends.Set("web", 4)
	backends.Delete("dns")

	fmt.Println(before.At("web"), before.Len())
	fmt.Println(backends.At("web"), backends.Len())
	// Output:
	// 3 2
	// 4 1
}

// Changes finds what differs between two copies without looking at what they share: this is how a
// data plane writes a change of one Service among 10,000.
func ExampleChanges() {
	var e nodestate.Editor[int, string]
	for i := range 10_000 {
		e.Set(i, "old")
	}
	before := e.Map()
	after := before
	after.Set(4711, "new")

	for k, c := range nodestate.Changes(before, after, func(a, b string) bool { return a == b }) {
		fmt.Printf("%d: %s to %s\n", k, c.Before, c.After)
	}
	// Output:
	// 4711: old to new
}
