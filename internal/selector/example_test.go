// SPDX-License-Identifier: Apache-2.0

package selector_test

import (
	"fmt"

	"github.com/weir-net/weir/internal/selector"
)

// A selector is parsed once and asked about the labels of many objects.
func Example() {
	s, err := selector.Parse(`tier == "web" && zone in {"a", "b"} && !has(canary)`)
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Matches(map[string]string{"tier": "web", "zone": "b"}))
	fmt.Println(s.Matches(map[string]string{"tier": "web", "zone": "b", "canary": ""}))
	// Output:
	// true
	// false
}

// An object without the label satisfies != and "not in", and no other operator.
func ExampleParse_absent() {
	for _, text := range []string{`zone != "a"`, `zone not in {"a"}`, `!(zone == "a")`, `zone == "a"`, `zone contains ""`} {
		s, err := selector.Parse(text)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%-20s %t\n", text, s.Matches(nil))
	}
	// Output:
	// zone != "a"          true
	// zone not in {"a"}    true
	// !(zone == "a")       true
	// zone == "a"          false
	// zone contains ""     false
}

// Kubernetes' own selectors are put together; what comes out is written in the same language.
func ExampleAnd() {
	s := selector.And(selector.In("app", "shop"), selector.Not(selector.Has("canary")))
	fmt.Println(s)
	fmt.Println(s.Matches(map[string]string{"app": "shop"}))
	// Output:
	// (app == "shop" && !has(canary))
	// true
}
