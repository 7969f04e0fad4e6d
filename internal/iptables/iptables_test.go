// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nettest"
)

// mine is what is somebody else's; what theirs adds is the owner's, as Felix writes it.
var mine = []string{"*filter", ":INPUT ACCEPT [0:0]", ":FORWARD ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]", ":MINE - [0:0]",
	`-A FORWARD -m comment --comment "mine: cali:no" -j MINE`, "-A MINE -j ACCEPT", "COMMIT"}

var theirs = slices.Concat(mine[:5], []string{":cali-FORWARD - [0:0]", ":cali-tw-cali0123456789a - [0:0]",
	`-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD`}, mine[5:6], []string{
	`-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT`,
	`-A FORWARD -m mark --mark 0x10000/0x10000 -m comment --comment "cali:mp77cMpurHhyjLrM" -j MARK --set-xmark 0x10000/0x10000`}, mine[6:7], []string{
	`-A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j MARK --set-xmark 0x0/0xe0000`,
	`-A cali-FORWARD -i cali+ -m comment --comment "cali:A_sPAO0mcxbT9mOV" -g cali-tw-cali0123456789a`}, mine[7:])

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

// run runs a program in the network namespace of this thread, and returns its lines.
func run(t *testing.T, stdin string, args ...string) []string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out.String())
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, counters.ReplaceAllString(line, "[0:0]"))
		}
	}
	return lines
}

// TestRemove: of a table with chains and rules of an owner everything else stays as it was.
func TestRemove(t *testing.T) {
	of := Owner{Chain: func(name string) bool { return strings.HasPrefix(name, "cali-") }, Comment: func(text string) bool { return strings.HasPrefix(text, "cali:") }}
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			nettest.Run(t, func(string) error {
				run(t, strings.Join(mine, "\n")+"\n", "iptables-"+kind+"-restore")
				want := run(t, "", "iptables-"+kind+"-save", "-t", "filter")
				run(t, strings.Join(theirs, "\n")+"\n", "iptables-"+kind+"-restore")
				if full := run(t, "", "iptables-"+kind+"-save", "-t", "filter"); len(full) != len(want)+7 {
					t.Fatalf("%q", full)
				}
				removed, err := Remove(of)
				if err != nil || removed != (Removed{Rules: 3, Chains: 2}) {
					t.Errorf("%+v, %v", removed, err)
				}
				if got := run(t, "", "iptables-"+kind+"-save", "-t", "filter"); !slices.Equal(got, want) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if removed, err := Remove(of); err != nil || removed != (Removed{}) {
					t.Errorf("once more: %+v, %v", removed, err)
				}
				return nil
			})
		})
	}
}
