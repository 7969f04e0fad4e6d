// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nettest"
)

// Every cell names a test that there is, or says why there is none, and is there once.
func TestCells(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range asks() {
		key := strings.Join([]string{c.Mode, c.Family, c.Plane, c.What}, ", ")
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
		if text, err := os.ReadFile("../kernels/main.go"); err != nil || c.Kernels != "" && !strings.Contains(string(text), strconv.Quote(c.Kernels)) {
			t.Errorf("%s: make kernels has no check %q (%v)", key, c.Kernels, err)
		}
		if (c.Test == "") == (c.Why == "") {
			t.Errorf("%s has the test %q and the reason %q", key, c.Test, c.Why)
		}
		if c.Test == "" {
			continue
		}
		folder, name, _ := strings.Cut(c.Test, " ")
		test, _, _ := strings.Cut(name, "/")
		files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %s: no tests there (%v)", key, folder, err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			nettest.Must(t, err)
			found = found || regexp.MustCompile(`(?m)^func `+test+`\(t \*testing\.T\)`).Match(text)
		}
		if !found {
			t.Errorf("%s: there is no %s in %s", key, test, folder)
		}
	}
	for _, what := range asked {
		for _, mode := range []string{"WireGuard, IPv4, eBPF, ", "WireGuard, IPv6, nftables, ", "IP in IP, IPv4, eBPF, ", "IP in IP, IPv4, nftables, ", "BGP, IPv4, eBPF, ", "BGP, IPv6, eBPF, ", "BGP, IPv4, nftables, ", "BGP, IPv6, nftables, "} {
			if !seen[mode+what] {
				t.Errorf("%s%s is not there", mode, what)
			}
		}
	}
}
