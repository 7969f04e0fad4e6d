// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// Apache runs ApacheBench: count requests, each on a connection of its own, with so many open at a
// time. The times are in µs; its mean is the time of a request as a client sees it. It fails when a
// single request did.
func Apache(t Target, count, concurrency int) (bench.Summary, error) {
	program, err := exec.LookPath("ab")
	if err != nil {
		return bench.Summary{}, errors.New("there is no ab: install Debian's apache2-utils")
	}
	if err := pin(t.CPU); err != nil { // inherited
		return bench.Summary{}, err
	}
	// ApacheBench's words have whole milliseconds; its CSV file has three digits more.
	percentiles, err := os.CreateTemp("", "weir-ab-")
	if err != nil {
		return bench.Summary{}, err
	}
	percentiles.Close()
	defer os.Remove(percentiles.Name())
	seconds := strconv.Itoa(max(1, int(t.Patience.Seconds())))
	cmd := exec.Command(program, "-q", "-n", strconv.Itoa(count), "-c", strconv.Itoa(concurrency), "-s", seconds,
		"-e", percentiles.Name(), fmt.Sprintf("http://%v/", t.To))
	var words, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &words, &wrong
	if err := cmd.Run(); err != nil {
		return bench.Summary{}, fmt.Errorf("ab: %w: %s", err, strings.TrimSpace(wrong.String()))
	}
	table, err := os.ReadFile(percentiles.Name())
	if err != nil {
		return bench.Summary{}, err
	}
	return parseApache(words.String(), string(table), count)
}

var apacheNumber = regexp.MustCompile(`(?m)^(Complete requests|Failed requests|Non-2xx responses|Time per request):\s+([0-9.]+)(?: \[ms\] \(mean\))?\s*$`)

// parseApache reads what ApacheBench prints and its CSV file.
func parseApache(words, table string, count int) (bench.Summary, error) {
	found := map[string]float64{}
	for _, m := range apacheNumber.FindAllStringSubmatch(words, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return bench.Summary{}, fmt.Errorf("ab says %q", m[0])
		}
		found[m[1]] = v
	}
	mean, ok := found["Time per request"]
	if !ok || int(found["Complete requests"]) != count || found["Failed requests"] != 0 || found["Non-2xx responses"] != 0 {
		return bench.Summary{}, fmt.Errorf("ab did not make %d requests that all succeed:\n%s", count, words)
	}
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil {
		return bench.Summary{}, fmt.Errorf("reading ab's percentiles: %w", err)
	}
	s := bench.Summary{Count: count, Mean: mean * 1000}
	for _, row := range rows {
		for name, to := range map[string]*float64{"0": &s.Min, "50": &s.P50, "90": &s.P90, "99": &s.P99, "100": &s.Max} {
			if row[0] != name {
				continue
			}
			ms, err := strconv.ParseFloat(row[1], 64)
			if err != nil {
				return s, fmt.Errorf("reading ab's percentiles: %w", err)
			}
			*to = ms * 1000
		}
	}
	if s.P50 == 0 || s.P99 == 0 {
		return s, errors.New("ab's file has no percentiles")
	}
	return s, nil
}
