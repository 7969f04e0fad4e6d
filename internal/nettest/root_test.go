// SPDX-License-Identifier: Apache-2.0

package nettest

import "testing"

// TestOutcome: a process that ends well may have skipped the test, or have no such test.
func TestOutcome(t *testing.T) {
	const out = `=== RUN   TestX
=== RUN   TestX/frr
    x_test.go:7: --- PASS: TestX/other (0.00s)
--- PASS: TestX (0.00s)
    --- SKIP: TestX/frr (0.00s)
    --- PASS: TestX/frr-10 (0.01s)
PASS
`
	for name, want := range map[string]string{"TestX": "passed", "TestX/frr": "skipped", "TestX/frr-10": "passed", "TestX/bird": "error", "TestX/other": "error"} {
		got := "passed"
		switch skipped, err := outcome(out, name); {
		case err != nil:
			got = "error"
		case skipped:
			got = "skipped"
		}
		if got != want {
			t.Errorf("%s %s, want %s", name, got, want)
		}
	}
	if got := OnlyTest("TestX/frr-10.3"); got != `^TestX$/^frr-10\.3$` {
		t.Errorf("the pattern is %s", got)
	}
}
