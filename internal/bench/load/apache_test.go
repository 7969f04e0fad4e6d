// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench"
)

const apacheWords = `This is ApacheBench, Version 2.3
Concurrency Level:      10
Time taken for tests:   2.500 seconds
Complete requests:      50000
Failed requests:        0
Total transferred:      6550000 bytes
Requests per second:    20000.00 [#/sec] (mean)
Time per request:       0.500 [ms] (mean)
Time per request:       0.050 [ms] (mean, across all concurrent requests)
`

const apacheTable = "Percentage served,Time in ms\n0,0.101\n1,0.2\n50,0.487\n90,0.6\n99,1.204\n100,7.001\n"

func TestParseApache(t *testing.T) {
	got, err := parseApache(apacheWords, apacheTable, 50000)
	want := bench.Summary{Count: 50000, Mean: 500, Min: 101, P50: 487, P90: 600, P99: 1204, Max: 7001}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for name, words := range map[string]string{
		"some failed":      strings.Replace(apacheWords, "Failed requests:        0", "Failed requests:        3", 1),
		"some are errors":  apacheWords + "Non-2xx responses:      7\n",
		"some are missing": strings.Replace(apacheWords, "50000", "49999", 1),
		"no time":          strings.ReplaceAll(apacheWords, "Time per", "Time for"),
	} {
		if _, err := parseApache(words, apacheTable, 50000); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := parseApache(apacheWords, "Percentage served,Time in ms\n0,0.101\n", 50000); err == nil {
		t.Error("a table without percentiles was taken")
	}
}
