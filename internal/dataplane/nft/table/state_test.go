// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"
)

// recording is nftables that remembers the transactions it is given.
type recording struct {
	knftables.Interface
	ran []string
}

func (r *recording) Run(ctx context.Context, tx *knftables.Transaction) error {
	r.ran = append(r.ran, tx.String())
	return r.Interface.Run(ctx, tx)
}

// TestTableIsFilledFirst: no packet is reset in the moment in which the kernel has a new table's
// rules, and not yet its networks.
func TestTableIsFilledFirst(t *testing.T) {
	nft := &recording{Interface: knftables.NewFake(knftables.IPv4Family, Name)}
	w := NewState(nft, Family{})
	rendered := New(knftables.IPv4Family)
	rendered.Sets["allowed"] = Set{Key: "ipv4_addr", Interval: true}
	rendered.Add("allowed", "172.30.0.0/24", "")
	rendered.Chains["hooked"] = Chain{Type: knftables.FilterType, Hook: knftables.InputHook, Priority: "0", Rules: []string{"ip daddr @allowed accept", "goto deny"}}
	rendered.Chains["deny"] = Chain{Rules: []string{"counter", "ct state established reject with tcp reset", "drop"}}
	write := func() []string {
		t.Helper()
		nft.ran = nil
		w.Desire(rendered, []string{"allowed"}, func(string) bool { return false })
		if err := w.Write(context.Background()); err != nil {
			t.Fatal(err)
		}
		return nft.ran
	}
	has := func(what, text string, wanted bool, word string) {
		t.Helper()
		if strings.Contains(text, word) != wanted {
			t.Errorf("%s: %q in it: %v, want %v:\n%s", what, word, !wanted, wanted, text)
		}
	}
	ran := write()
	if len(ran) != 2 {
		t.Fatalf("a table that was not there took %d transactions, want 2:\n%s", len(ran), strings.Join(ran, "\n\n"))
	}
	has("filling", ran[0], false, "hook input")
	has("filling", ran[0], true, "172.30.0.0/24")
	has("hooking", ran[1], true, "hook input")
	has("hooking", ran[1], false, "172.30.0.0/24")
	if ran = write(); len(ran) != 0 {
		t.Errorf("what is there is written again:\n%s", strings.Join(ran, "\n\n"))
	}
	whole := w.hashes["deny"]
	rendered.Sets["more"] = Set{Key: "ipv4_addr"}
	if ran = write(); len(ran) != 2 {
		t.Fatalf("a table of another layout took %d transactions, want 2:\n%s", len(ran), strings.Join(ran, "\n\n"))
	}
	has("making anew", ran[0], true, "delete table")
	has("making anew", ran[0], true, "hook input")
	has("making anew", ran[0], false, "reject")
	has("making anew", ran[0], true, "ct state established drop")
	has("the rejects", ran[1], false, "delete table")
	has("the rejects", ran[1], true, "ct state established reject with tcp reset")
	if now := w.hashes["deny"]; strings.Join(now, " ") != strings.Join(whole, " ") {
		t.Errorf("the chain is %v in the end, want %v", now, whole)
	}
}
