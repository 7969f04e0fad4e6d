// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/kernel"
)

var testMarks = Marks{Mask: 0x0ff00000, Seen: 0x0bc00000, Done: 0x0ba00000}

// TestTranslatedZone: a connection as the stack sees it exists alongside the same one translated,
// with whom it shares a tuple, the kernel takes the rules that lead packets to it, and nothing is
// left of it in the end.
func TestTranslatedZone(t *testing.T) {
	table := opened(t)
	ctx := context.Background()
	there := func(chain string) bool {
		return kernel.NFT(ctx, "add rule inet "+holdTable+" "+chain+" counter\n", nftTime) == nil
	}
	b := NewTranslatedZone(table, testMarks)
	if err := errors.Join(b.Sent(ctx), b.Close()); err != nil || there("sent") {
		t.Errorf("nothing is to be kept apart: %v", err)
	}
	four, six := examples()["source port"], examples()["IPv6"]
	var seen []Entry
	for _, e := range []Entry{four, six} {
		if put, err := table.Put(e, nil); !put || err != nil {
			t.Fatalf("written %v, %v", put, err)
		}
		e.Orig = e.Reply.Reversed()
		seen = append(seen, e)
	}
	for range 2 { // what is there already is left alone
		if err := b.Add(ctx, seen[:1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(b.Sent(ctx), b.Add(ctx, seen)); err != nil {
		t.Fatal(err)
	}
	if !there("arrive") || !there("sent") {
		t.Error("packets are not led")
	}
	for i, e := range []Entry{four, six} {
		if got, found, err := table.Find(e.Reply); err != nil || !found || !same(got, e) {
			t.Errorf("translated: %+v (%v, %v)", got, found, err)
		}
		want := seen[i]
		want.Zone = TranslatedZoneID
		if got, found, err := table.In(TranslatedZoneID).Find(e.Reply); err != nil || !found || !same(got, want) {
			t.Errorf("in the zone: %+v (%v, %v), want %+v", got, found, err, want)
		}
	}
	if err := b.Close(); err != nil || there("arrive") {
		t.Errorf("packets are still led: %v", err)
	}
	for _, e := range []Entry{four, six} {
		if _, found, err := table.In(TranslatedZoneID).Find(e.Reply); found || err != nil {
			t.Errorf("it is still there (%v)", err)
		}
		if err := table.Delete(e.Orig); err != nil {
			t.Error(err)
		}
	}
}

// TestTranslatedZoneAgain: what could not be led is tried again with the next call.
func TestTranslatedZoneAgain(t *testing.T) {
	table := opened(t)
	ctx := context.Background()
	e := examples()["source port"]
	e.Orig = e.Reply.Reversed()
	b := NewTranslatedZone(table, testMarks)
	path := os.Getenv("PATH")
	t.Setenv("PATH", "")
	if err := b.Add(ctx, []Entry{e}); err == nil || b.Leads(e.Orig) {
		t.Errorf("without the nft program it is led (%v)", err)
	}
	t.Setenv("PATH", path)
	again := failingNft(t)
	if err := b.Add(ctx, []Entry{e}); err == nil || b.Leads(e.Orig) {
		t.Errorf("where elements cannot be added it is led (%v)", err)
	}
	again()
	if err := b.Add(ctx, []Entry{e}); err != nil || !b.Leads(e.Orig) {
		t.Errorf("it is not led the next time (%v)", err)
	}
	led := fmt.Sprintf("get element inet %s arrive4 { %s . %s . %d . %d . %d }\n", holdTable, e.Orig.Src, e.Orig.Dst, e.Orig.Proto, e.Orig.SrcPort, e.Orig.DstPort)
	if err := kernel.NFT(ctx, led, nftTime); err != nil {
		t.Errorf("it is not led: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestTranslatedZoneMarks: what comes in is led by its mark and its tuple, and by its tuple alone
// where programs put no mark on it; a chain that leads what the node sends goes by itself.
func TestTranslatedZoneMarks(t *testing.T) {
	table := opened(t)
	ctx := context.Background()
	e := examples()["source port"]
	e.Orig = e.Reply.Reversed()
	for name, m := range map[string]Marks{"marked": testMarks, "not marked": {Mask: testMarks.Mask, Done: testMarks.Done}} {
		b := NewTranslatedZone(table, m)
		if err := errors.Join(b.Open(ctx), b.Add(ctx, []Entry{e}), b.Open(ctx), b.Sent(ctx)); err != nil {
			t.Fatal(err)
		}
		arrive, leave := listed(t, "arrive"), listed(t, "leave")
		if got := strings.Contains(arrive, "!= 0x0bc00000 accept") && strings.Contains(arrive, "& 0xf00fffff"); got != (m.Seen != 0) || strings.Count(arrive, "ct zone set 8787") != 2 {
			t.Errorf("%s: what comes in is led by %s", name, arrive)
		}
		if !strings.Contains(leave, "ct zone 0 ct status snat,dnat") || !strings.Contains(leave, "0x0ba00000") {
			t.Errorf("%s: what leaves translated: %s", name, leave)
		}
		if sent := listed(t, "sent"); strings.Count(sent, "ct zone set 8787") != 2 {
			t.Errorf("%s: what the node sends is led by %s", name, sent)
		}
		if err := b.Unsent(); err != nil || listed(t, "sent") != "" || listed(t, "arrive") != arrive {
			t.Errorf("%s: what the node sends is still led by %q, what comes in by %s (%v)", name, listed(t, "sent"), listed(t, "arrive"), err)
		}
		if err := errors.Join(b.Close(), b.Unsent()); err != nil {
			t.Error(err)
		}
	}
}

// listed is a chain of the table, as nft prints it; "" when it is not there.
func listed(t *testing.T, chain string) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "chain", "inet", holdTable, chain).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

// failingNft lets the nft program add no elements until again is called.
func failingNft(t *testing.T) (again func()) {
	t.Helper()
	path, dir := os.Getenv("PATH"), t.TempDir()
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\ntext=$(cat)\ncase $text in *'add element'*) exit 1;; esac\nprintf '%%s\\n' \"$text\" | %s \"$@\"\n", real)
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+path)
	return func() { t.Setenv("PATH", path) }
}

// TestReleaseForgets: what a process that was killed kept apart is forgotten by the next one, and
// nothing else. It may have been killed before anything was led.
func TestReleaseForgets(t *testing.T) {
	t.Run("led", testReleaseForgets)
	t.Run("not led", func(t *testing.T) {
		failingNft(t)
		testReleaseForgets(t)
	})
}

func testReleaseForgets(t *testing.T) {
	table := opened(t)
	e := examples()["source port"]
	if _, err := table.Put(e, nil); err != nil {
		t.Fatal(err)
	}
	seen := e
	seen.Orig = e.Reply.Reversed()
	b := NewTranslatedZone(table, testMarks)
	if err := b.Add(context.Background(), []Entry{seen}); (err == nil) != b.Leads(seen.Orig) {
		t.Fatal(err)
	}
	if _, found, err := table.In(TranslatedZoneID).Find(e.Reply); !found || err != nil {
		t.Fatalf("it is not there (%v)", err)
	}
	if err := ReleaseHold(); err != nil {
		t.Fatal(err)
	}
	if _, found, err := table.In(TranslatedZoneID).Find(e.Reply); !found || err != nil {
		t.Fatalf("it went with a hold that is none (%v)", err)
	}
	if err := Release(); err != nil {
		t.Fatal(err)
	}
	if _, found, err := table.In(TranslatedZoneID).Find(e.Reply); found || err != nil {
		t.Errorf("it is still there (%v)", err)
	}
	if got, found, err := table.Find(e.Reply); err != nil || !found || !same(got, e) {
		t.Errorf("the connection itself: %+v (%v, %v)", got, found, err)
	}
	if err := table.Delete(e.Orig); err != nil {
		t.Error(err)
	}
}

// TestSome: of many errors the first few are reported, and how many there were.
func TestSome(t *testing.T) {
	var s Some
	if s.Add(nil); s.Err() != nil {
		t.Errorf("nothing went wrong: %v", s.Err())
	}
	first := errors.New("first")
	for range 10 {
		s.Add(first)
	}
	if err := s.Err(); !errors.Is(err, first) || !strings.Contains(err.Error(), "and 7 more") || strings.Count(err.Error(), "first") != 3 {
		t.Errorf("reported as %v", err)
	}
}

// TestLoosen: windows of a connection are not looked at any more, and all else stays; one that is
// not there is no error.
func TestLoosen(t *testing.T) {
	table := opened(t)
	want := examples()["service"]
	want.TCP.OrigFlags, want.TCP.RepFlags = 0, 0
	if _, err := table.Put(want, nil); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := table.Find(want.Orig); got.TCP.OrigFlags&TCPLiberal != 0 {
		t.Fatal("windows are not looked at from the start")
	}
	if err := table.Loosen(want.Orig); err != nil {
		t.Fatal(err)
	}
	want.TCP.OrigFlags, want.TCP.RepFlags = TCPLiberal, TCPLiberal
	if got, found, err := table.Find(want.Orig); err != nil || !found || !same(got, want) {
		t.Errorf("there is %+v (%v, %v), want %+v", got, found, err, want)
	}
	if err := errors.Join(table.Delete(want.Orig), table.Loosen(want.Orig)); err != nil {
		t.Error(err)
	}
}
