// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What is read off a console: a check passes by its code alone, one that has to be refused by what
// it says, too, and one that did not end fails.
func TestRead(t *testing.T) {
	console := "noise\n=== begin 0\nkernel 5.10 cannot carry Weir: it has no x\n\n=== end 0 1 2\n=== begin 1\nPASS\n\n=== end 1 0 31\n=== begin 2\n--- FAIL: TestA\n\n=== end 2 1 5\n=== begin 3\nhalf"
	list := []check{{name: "probe", refuses: "cannot carry Weir"}, {name: "good"}, {name: "bad"}, {name: "cut off"}}
	for release, want := range map[string][]bool{"5.10.0": {true, true, false, false}, "6.1.0": {false, true, false, false}} {
		var got []bool
		all := (&kernel{release: release}).read(console, list)
		for _, o := range all {
			got = append(got, o.Passed)
		}
		if !slices.Equal(got, want) || all[1].Seconds != 31 || !strings.Contains(all[2].Output, "TestA") {
			t.Errorf("%s: %+v", release, all)
		}
	}
}

// What a machine's first process prints is read for what the commands came to, whether their output
// is shown as it comes or at the end.
func TestScript(t *testing.T) {
	list := []check{{name: "good", command: "{ echo all is well; }", vital: true}, {name: "bad", command: "(echo it broke; echo so it did >&2; exit 3)", vital: true},
		{name: "not reached", command: "true"}}
	for _, output := range []string{kept, shown} {
		console, err := exec.Command("sh", "-c", "off() { exit 0; }; "+script(nil, strings.ReplaceAll(output, "/tmp", t.TempDir()), list)).Output()
		if err != nil {
			t.Fatal(err)
		}
		got := (&kernel{release: "6.12.0"}).read(string(console), list)
		if !got[0].Passed || got[1].Passed || got[2].Passed || !strings.Contains(got[1].Output, "it broke") || !strings.Contains(got[1].Output, "so it did") {
			t.Errorf("%q: %+v", output, got)
		}
	}
}

func TestVersions(t *testing.T) {
	if !older("5.10.0-32-cloud-amd64", "5.14") || older("6.1.0-50-cloud-amd64", "5.14") || older("5.14.0", "5.14") {
		t.Error("which of two kernels is older")
	}
	if slices.Compare(numbersOf("linux-image-6.1.0-50-cloud-amd64"), numbersOf("linux-image-6.1.0-9-cloud-amd64")) <= 0 {
		t.Error("50 comes before 9")
	}
}
