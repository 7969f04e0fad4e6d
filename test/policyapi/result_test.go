// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"strings"
	"testing"
)

const log = "\x16=== RUN   TestConformance\n" +
	"\x16--- PASS: TestConformance/One/Should_support_x (0.50s)\n" +
	"\x16--- FAIL: TestConformance/One/Should_support_y (1.00s)\n" +
	"\x16--- FAIL: TestConformance/One (1.50s)\n" +
	"\x16--- PASS: TestConformance/Two (0.20s)\n" +
	"\x16--- SKIP: TestConformance/Three (0.00s)\n" +
	"\x16--- FAIL: TestConformance (2.00s)\n"

func TestProgress(t *testing.T) {
	t.Parallel()
	p := &progress{log: io.Discard, to: io.Discard, run: 1}
	for _, b := range []byte(log) {
		if _, err := p.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if !p.ended || len(p.tests) != 3 || p.tests[0].Parts != 1 || len(p.tests[0].Failed) != 1 || p.tests[0].Seconds != 1.5 {
		t.Fatalf("%+v", p)
	}
	for _, c := range []struct {
		skips map[string]string
		only  string
		tests []test
		want  []string
	}{
		{nil, "", p.tests, []string{"1 tests failed", "Three was skipped"}},
		{map[string]string{"Three": "why", "Two": "why"}, "", p.tests[1:], []string{"names Two"}},
		{map[string]string{"Three": "why"}, "", p.tests[1:], nil},
		{map[string]string{"Three": "why"}, "Two", p.tests[1:2], nil},
		{nil, "", nil, []string{"no test passed"}},
	} {
		r := &result{Tests: c.tests}
		err := r.evaluate(c.skips, c.only)
		if (err == nil) != (len(c.want) == 0) {
			t.Errorf("%v: %v", c.skips, err)
		}
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %v does not say %q", c.skips, err, w)
			}
		}
	}
}

// A suite that fails outside of its tests has failed.
func TestWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		log    string
		exited error
		want   string
	}{
		{log, errors.New("code 1"), ""}, // a test failed: that counts
		{"--- PASS: TestConformance/One (1.50s)\n--- PASS: TestConformance (2.00s)\n", nil, ""},
		{"--- PASS: TestConformance/One (1.50s)\n--- FAIL: TestConformance (2.00s)\n", errors.New("code 1"), "outside of its tests"},
		{"--- PASS: TestConformance/One (1.50s)\n--- PASS: TestConformance (2.00s)\npanic: too late\n", errors.New("code 2"), "no test did: code 2"},
	} {
		p := &progress{log: io.Discard, to: io.Discard, run: 1}
		if _, err := io.WriteString(p, c.log); err != nil {
			t.Fatal(err)
		}
		err := p.whole(c.exited)
		if !p.ended || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.log, err, c.want)
		}
	}
}

func TestSkipsHaveReasons(t *testing.T) {
	t.Parallel()
	if _, err := readSkips("skips.golden"); err != nil {
		t.Error(err)
	}
}
