// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sort"
	"strings"
)

// allowed are the reasons for which a spec may be in skips.golden.
var allowed = map[string]bool{
	"sctp":       true, // the kernel has no SCTP sockets
	"cloud":      true, // a cloud provider, or SSH to its machines
	"kube-proxy": true, // asks for what only kube-proxy's own rules have
}

// skip is a spec that is not run.
type skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// listSpecs asks e2e.test for the names of all its specs that begin with a text, in the order of
// their names.
func listSpecs(e2eTest, prefix string) ([]string, error) {
	out, err := exec.Command(e2eTest, "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("asking %s for its specs: %w", e2eTest, err)
	}
	return parseSpecs(string(out), prefix)
}

// specLine is "  FILE:LINE: NAME". A name may end in blanks, which count.
var specLine = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)

func parseSpecs(listing, prefix string) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	for _, line := range strings.Split(listing, "\n") {
		m := specLine.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], prefix) {
			continue
		}
		name := strings.TrimSpace(m[1])
		if seen[name] {
			return nil, fmt.Errorf("two specs are named %q", name)
		}
		seen[name] = true
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no spec begins with %q", prefix)
	}
	sort.Strings(names)
	return names, nil
}

// readSkips reads skips.golden: "reason KEY: text" opens a section, each other line is a spec; "#"
// begins a comment.
func readSkips(path string) ([]skip, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []skip
	seen := map[string]bool{}
	reason := ""
	for n, line := range strings.Split(string(raw), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "reason "); ok {
			reason, _, ok = strings.Cut(rest, ":")
			if !ok || !allowed[reason] {
				return nil, fmt.Errorf("%s:%d: %q is no reason for which a spec may be skipped", path, n+1, reason)
			}
			continue
		}
		if reason == "" {
			return nil, fmt.Errorf("%s:%d: a spec without a reason above it", path, n+1)
		}
		if seen[line] {
			return nil, fmt.Errorf("%s:%d: listed twice: %s", path, n+1, line)
		}
		seen[line] = true
		out = append(out, skip{line, reason})
	}
	return out, nil
}

// selectSpecs returns the specs that are not skipped. A skip that names no spec is an error: the
// list would outlive what it is about.
func selectSpecs(specs []string, skips []skip) ([]string, error) {
	left := map[string]bool{}
	for _, s := range specs {
		left[s] = true
	}
	var unknown []string
	for _, s := range skips {
		if !left[s.Name] {
			unknown = append(unknown, s.Name)
		}
		delete(left, s.Name)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("the list of skipped specs names %d that e2e.test does not have:\n  %s", len(unknown), strings.Join(unknown, "\n  "))
	}
	var out []string
	for _, s := range specs {
		if left[s] {
			out = append(out, s)
		}
	}
	return out, nil
}

// readKnown reads known-failures.txt: one name a line, and above it a comment that says what it
// waits for.
func readKnown(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]string{}
	reason := ""
	sc := bufio.NewScanner(f)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		switch {
		case line == "":
			reason = ""
		case strings.HasPrefix(line, "#"):
			reason = strings.TrimSpace(strings.TrimLeft(line, "# "))
		case reason == "":
			return nil, fmt.Errorf("%s:%d: a spec without the reason above it", path, n)
		default:
			out[line] = reason
		}
	}
	return out, sc.Err()
}
