// SPDX-License-Identifier: Apache-2.0

package heal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// momentary are the maps of what packets and sockets bring about.
var momentary = []string{"weir_affinity", "weir_sockets", "weir_drops", "weir_shares"}

// tables are what the node has of Weir that decides where packets go: a line for each key of the
// tables and for each route. A value may differ between two runs of an agent, by the number of an
// epoch; keys do not.
func (n *node) tables() ([]string, error) {
	lines, err := n.pinned()
	if n.nft {
		lines, err = n.ruleset()
	}
	if err != nil {
		return nil, err
	}
	for _, option := range []string{"-4", "-6"} {
		out, err := n.command("ip", option, "route", "show", "dev", "weir0").Output()
		if err != nil {
			return nil, fmt.Errorf("routes by weir0: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			lines = append(lines, "route "+strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

// pinned are the keys of the eBPF maps that an agent fills.
func (n *node) pinned() ([]string, error) {
	var lines []string
	err := filepath.Walk(filepath.Join(n.bpffs, "weir"), func(path string, info os.FileInfo, err error) error {
		name := filepath.Base(path)
		if err != nil || info.IsDir() || !strings.HasPrefix(name, "weir_") || slices.Contains(momentary, name) {
			return err
		}
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return err
		}
		defer m.Close()
		if m.Type() != ebpf.Hash && m.Type() != ebpf.LPMTrie {
			return nil
		}
		key, next := make([]byte, m.KeySize()), make([]byte, m.KeySize())
		for err = m.NextKey(nil, next); err == nil; err = m.NextKey(key, next) {
			copy(key, next)
			lines = append(lines, name+" "+hex.EncodeToString(key))
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		return err
	})
	return lines, err
}

// varying is what of a ruleset differs between runs: marks with the number of a policy, and the
// sums of rules that have one.
var varying = regexp.MustCompile(`0x[0-9a-f]+| comment "[0-9a-f]{16}"`)

// learned are sets of what the kernel and packets bring about.
var learned = []string{"neighbours", "resolving", "resolves", "discovers", "begun", "begun-pressed", "port-shares", "query-shares"}

// linkLocal are elements of sets that come late: the kernel looks for duplicates of such an address
// first.
const linkLocal = "fe80::"

// ruleset are the rules of Weir's tables in nftables and the elements of their sets, whose order
// says nothing.
func (n *node) ruleset() ([]string, error) {
	out, err := n.command("nft", "-s", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the ruleset: %w", err)
	}
	var lines []string
	skip := false
	for line := range strings.Lines(string(out)) {
		switch word := strings.Fields(line); {
		case len(word) == 3 && (word[0] == "set" || word[0] == "map"):
			skip = slices.Contains(learned, word[1])
		case len(word) == 3 && word[0] == "chain":
			skip = false
		}
		if skip {
			continue
		}
		for _, part := range strings.Split(strings.TrimPrefix(strings.TrimSpace(line), "elements = "), ", ") {
			line := strings.Trim(varying.ReplaceAllString(part, ""), "{}, ")
			if !strings.HasPrefix(line, linkLocal) {
				lines = append(lines, line)
			}
		}
	}
	return lines, nil
}

// difference says which lines are there too much, and which are missing.
func difference(want, got []string) error {
	var out []string
	for _, l := range got {
		if _, ok := slices.BinarySearch(want, l); !ok {
			out = append(out, "+ "+l)
		}
	}
	for _, l := range want {
		if _, ok := slices.BinarySearch(got, l); !ok {
			out = append(out, "- "+l)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return fmt.Errorf("%d lines of the tables differ:\n%s", len(out), strings.Join(out[:min(len(out), 40)], "\n"))
}
