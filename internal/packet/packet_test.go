// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func TestTextRoundTrip(t *testing.T) {
	for _, s := range []string{
		"tcp 10.244.1.2:1234 > 10.96.0.1:80 S ttl=64",
		"tcp 10.244.1.2:1234 > 10.96.0.1:80 FP. seq=7 ack=9 win=512 ttl=1 tos=4 ipid=77 df data=\"GET / [x]\"",
		"tcp 10.244.1.2:1234 > 10.96.0.1:80 none ttl=64 opts=0x020405b4",
		"udp 10.244.1.2:999 > 10.96.0.10:53 ttl=64 data=0x00ff",
		"udp 10.244.1.2:999 > 10.96.0.10:53 ttl=64 nosum",
		"udp 10.244.1.2:999 > 10.96.0.10:53 ttl=64 badipsum=0x0001 badsum=0x1234",
		"sctp 10.244.1.2:999 > 10.96.0.10:53 INIT tag=5 ttl=64",
		"sctp 10.244.1.2:999 > 10.96.0.10:53 DATA tag=9 ttl=64 badcrc=0x12345 data=0x0300070000",
		"sctp 10.244.1.2:999 > 10.96.0.10:53 chunk77 ttl=64 nosum data=\"\"",
		"icmp 10.0.0.1 > 10.244.1.2 error type=3 code=3 ttl=64 [sctp 10.244.1.2:999 > 10.0.0.1:53 DATA tag=3 ttl=62]",
		"icmp 10.244.1.2 > 8.8.8.8 echo seq=1 id=7 ttl=64",
		"icmp 8.8.8.8 > 10.244.1.2 reply seq=1 id=7 ttl=64 smac=02:00:00:00:00:01 dmac=02:00:00:00:00:02",
		"icmp 10.244.1.2 > 8.8.8.8 query type=13 seq=1 id=7 ttl=64 data=0x000000010000000000000000",
		"icmp 8.8.8.8 > 10.244.1.2 answer type=18 seq=1 id=7 ttl=64 badsum=0x0001",
		"icmp 10.0.0.1 > 10.244.1.2 error type=11 ttl=64 [icmp 10.244.1.2 > 10.0.0.1 query type=15 seq=2 id=1 ttl=1]",
		"icmp 10.0.0.1 > 10.244.1.2 error type=3 code=3 ttl=64 [udp 10.244.1.2:999 > 10.0.0.1:53 ttl=62]",
		"icmp 10.0.0.1 > 10.244.1.2 error type=3 code=4 rest=1400 ttl=64 [tcp 10.244.1.2:999 > 10.0.0.1:53 none seq=5 ttl=62]",
		"icmp 10.0.0.1 > 10.244.1.2 error type=11 ttl=64 [icmp 10.244.1.2 > 10.0.0.1 echo seq=2 id=1 ttl=1]",
		"ip 10.0.0.1 > 10.0.0.2 proto=132 ttl=64 data=0x0001000200000000",
		"ip 10.0.0.1 > 10.0.0.2 proto=17 ttl=64 frag=1480+ data=0x00ff",
		"ip 10.0.0.1 > 10.0.0.2 proto=17 ttl=64 ipopts=0x94040000",
		"tcp [fd00::1]:1234 > [fd00::2]:80 S ttl=64 tos=4",
		"udp [fd00::1]:999 > [fd00::2]:53 ttl=64 badsum=0x1234 data=0x00ff",
		"sctp [fd00::1]:999 > [fd00::2]:53 INIT tag=5 ttl=64",
		"icmp fd00::1 > fd00::2 echo seq=1 id=7 ttl=64",
		"icmp fd00::2 > fd00::1 reply seq=1 id=7 ttl=64 badsum=0x0001",
		"icmp fd00::2 > fd00::1 error type=2 rest=1280 ttl=64 [tcp [fd00::1]:999 > [fd00::3]:53 none seq=5 ttl=62]",
		"icmp fd00::2 > fd00::1 error type=1 code=4 ttl=64 [icmp fd00::1 > fd00::3 echo seq=2 id=1 ttl=1]",
		"ip fd00::1 > ff02::1 proto=58 ttl=255 data=0x8700",
		"ip fd00::1 > fd00::2 proto=17 ttl=64 ipid=70000 frag=0+ data=0x03e8003500200000",
		"ip fd00::1 > fd00::2 proto=60 ttl=64 ipid=1 ext=0:0x050200000000 frag=8 data=0x00ff",
		"ip fd00::1 > fd00::2 proto=6 ttl=64 ipid=1 ext=44 ext=60:0x01040000000001040000000000ff frag=0+ data=0x00ff",
		"udp [fd00::1]:999 > [fd00::2]:53 ttl=64 ipid=7 ext=44",
		"tcp [fd00::1]:999 > [fd00::2]:53 S ttl=64 ext=0:0x050200000000 ext=43:0x000000000000 data=\"x\"",
		"ip fd00::1 > fd00::2 proto=44 ttl=64 ipid=7 ext=44 data=0x1100000100000001",
		"ip fd00::1 > fd00::2 proto=60 ttl=64 data=0x110100000000",
		"icmp fd00::2 > fd00::1 error type=1 code=4 ttl=64 [udp [fd00::1]:999 > [fd00::3]:53 ttl=1 ext=60:0x010400000000]",
		"frame type=0x0806 data=0x0001",
		"frame type=0x86dd data=0x6000",
		"frame type=0x0800 data=0x4500",
	} {
		p, err := Parse(s)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if got := p.String(); got != s {
			t.Errorf("Parse then String\n got %s\nwant %s", got, s)
		}
		b, err := p.Marshal()
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		q, err := Unmarshal(b)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got := q.String(); got != s {
			t.Errorf("through bytes\n got %s\nwant %s", got, s)
		}
	}
}

// The checksums here were added up by hand, so that a
// mistake made in both directions shows.
func TestBytes(t *testing.T) {
	for text, want := range map[string]string{
		"udp 10.0.0.1:1 > 10.0.0.2:2 ttl=64":        "000000000000000000000000" + "0800" + "4500001c00000000401166cf0a0000010a000002" + "000100020008ebd8",
		"icmp 10.0.0.1 > 10.0.0.2 echo id=1 seq=2":  "000000000000000000000000" + "0800" + "4500001c00000000400166df0a0000010a000002" + "0800f7fc00010002",
		"udp [fd00::1]:1 > [fd00::2]:2 ttl=64":      "000000000000000000000000" + "86dd" + "6000000000081140" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" + "00010002000805d7",
		"icmp fd00::1 > fd00::2 echo id=1 seq=2":    "000000000000000000000000" + "86dd" + "6000000000083a40" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" + "800085b500010002",
		"tcp 10.0.0.1:1 > 10.0.0.2:2 S seq=3 win=4": "000000000000000000000000" + "0800" + "4500002800000000400666ce0a0000010a000002" + "000100020000000300000000500200049bd60000",
	} {
		b, err := MustParse(text).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for s, why := range map[string]string{
		"":                                          "empty",
		"dccp 1.1.1.1:1 > 2.2.2.2:2":                "not one of",
		"sctp 1.1.1.1:1 > 2.2.2.2:2 HELLO":          "chunk",
		"tcp 1.1.1.1:1 2.2.2.2:2":                   "missing",
		"tcp 1.1.1.1 > 2.2.2.2:2":                   "not an ip:port",
		"tcp [::1]:1 > 2.2.2.2:2":                   "one family",
		"tcp 1.1.1.1:1 > 2.2.2.2:2 X":               "neither",
		"tcp 1.1.1.1:1 > 2.2.2.2:2 ttl=300":         "out of range",
		"udp 1.1.1.1:1 > 2.2.2.2:2 seq=3":           "unknown word",
		"udp 1.1.1.1:1 > 2.2.2.2:2 frag=8":          "written as ip",
		"ip 1.1.1.1 > 2.2.2.2 frag=7":               "multiple of 8",
		"udp 1.1.1.1:1 > 2.2.2.2:2 data=\"x":        "not closed",
		"udp 1.1.1.1:1 > 2.2.2.2:2 tot=4":           "quoted",
		"icmp 1.1.1.1 > 2.2.2.2 error":              "quotes",
		"icmp 1.1.1.1 > 2.2.2.2 error [udp":         "brackets",
		"tcp 1.1.1.1:1 > 2.2.2.2:2 S opts=0x01":     "TCP options",
		"udp 1.1.1.1:1 > 2.2.2.2:2 ext=60:0x00":     "unknown word",
		"udp 1.1.1.1:1 > 2.2.2.2:2 ipid=65536":      "16 bits",
		"udp [::1]:1 > [::2]:2 ext=60:0x00":         "6 and a multiple of 8",
		"udp [::1]:1 > [::2]:2 ext=17:0x0000000000": "6 and a multiple of 8",
		"udp [::1]:1 > [::2]:2 ipid=5":              "fragment header only",
		"ip ::1 > ::2 ext=44 ext=44":                "second",
		"icmp 1.1.1.1 > 2.2.2.2 error [frame]":      "not quoted",
		"icmp 1.1.1.1 > 2.2.2.2 query type=14":      "none of this family",
		"icmp 1.1.1.1 > 2.2.2.2 answer type=19":     "none of this family",
		"icmp ::1 > ::2 query type=13":              "none of this family",
		"ip 1.1.1.1 > 2.2.2.2 proto=1 smac=02:00:0": "MAC",
	} {
		if _, err := Parse(s); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("Parse(%q) = %v, want an error with %q", s, err, why)
		}
	}
}

func TestRewrite(t *testing.T) {
	for _, c := range []struct{ from, to string }{
		{"udp 10.0.0.1:10 > 10.0.0.2:20 ttl=9 data=\"abcd\"", "udp 10.9.0.1:11 > 10.8.0.2:21 ttl=9 data=\"abcd\""},
		{"tcp 10.0.0.1:10 > 10.0.0.2:20 S ttl=9", "tcp 10.9.0.1:11 > 10.8.0.2:21 S ttl=9"},
		{"icmp 10.0.0.1 > 10.0.0.2 echo id=10 ttl=9", "icmp 10.9.0.1 > 10.8.0.2 echo id=11 ttl=9"},
		{"icmp 10.0.0.1 > 10.0.0.2 reply id=20 ttl=9", "icmp 10.9.0.1 > 10.8.0.2 reply id=21 ttl=9"},
		{"icmp 10.0.0.1 > 10.0.0.2 query type=13 id=10 ttl=9", "icmp 10.9.0.1 > 10.8.0.2 query type=13 id=11 ttl=9"},
		{"icmp 10.0.0.1 > 10.0.0.2 answer type=14 id=20 ttl=9", "icmp 10.9.0.1 > 10.8.0.2 answer type=14 id=21 ttl=9"},
		{"udp 10.0.0.1:10 > 10.0.0.2:20 ttl=9 nosum", "udp 10.9.0.1:11 > 10.8.0.2:21 ttl=9 nosum"},
		{"sctp 10.0.0.1:10 > 10.0.0.2:20 INIT tag=7 ttl=9 data=\"abcd\"", "sctp 10.9.0.1:11 > 10.8.0.2:21 INIT tag=7 ttl=9 data=\"abcd\""},
		{"ip 10.0.0.1 > 10.0.0.2 proto=132 data=0x0102030405060708", "ip 10.9.0.1 > 10.8.0.2 proto=132 data=0x0102030405060708"},
	} {
		src, dst := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.8.0.2")
		p, want := MustParse(c.from), MustParse(c.to)
		p.Rewrite(src, dst, 11, 21)
		if p.String() != want.String() {
			t.Errorf("%s\n got %s\nwant %s", c.from, p, want)
		}
		if want.Kind != Echo {
			continue
		}
		// an echo inside an error: its checksum is updated too
		quote := func(s string) *Quote { return MustParse("icmp 1.1.1.1 > 2.2.2.2 error [" + s + "]").Quote }
		got := quote(c.from)
		got.Rewrite(src, dst, 11, 21)
		if got.String() != quote(c.to).String() {
			t.Errorf("quoted %s\n got %s\nwant %s", c.from, got, quote(c.to))
		}
	}
}

func TestWrongChecksumsStay(t *testing.T) {
	b, err := MustParse("tcp 10.0.0.1:1 > 10.0.0.2:2 S data=\"x\"").Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b[24] ^= 0x40 // IP checksum
	b[50] ^= 0x08 // TCP checksum
	p, err := Unmarshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.IP.SumError == 0 || p.SumError == 0 {
		t.Fatalf("wrong checksums not noticed: %s", p)
	}
	again, err := p.Marshal()
	if err != nil || !bytes.Equal(again, b) {
		t.Fatalf("marshalled again: %x, %v, want %x", again, err, b)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{
		"tcp 10.0.0.1:1 > 10.0.0.2:2 S data=\"x\"", "udp 10.0.0.1:1 > 10.0.0.2:2 ulen=3", "sctp 10.0.0.1:1 > 10.0.0.2:2 INIT tag=4", "icmp 10.0.0.1 > 10.0.0.2 echo id=4",
		"icmp 10.0.0.1 > 10.244.1.2 error code=3 [udp 10.244.1.2:999 > 10.0.0.1:53]", "ip 10.0.0.1 > 10.0.0.2 proto=17 frag=8+ data=\"z\"",
		"ip fd00::1 > fd00::2 proto=6 ipid=1 ext=44 ext=60:0x01040000000001040000000000ff frag=0+ data=0x00ff",
		"ip fd00::1 > fd00::2 proto=60 ipid=1 ext=0:0x050200000000 frag=8 data=0x00ff",
		"icmp fd00::2 > fd00::1 error type=1 code=4 [udp [fd00::1]:999 > [fd00::3]:53 ext=60:0x010400000000]",
		"frame type=0x0800 data=0x45", "icmp 10.0.0.1 > 10.244.1.2 error code=3 [icmp 10.244.1.2 > 10.0.0.1 reply id=8]",
	} {
		b, err := MustParse(s).Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Unmarshal(b)
		if err != nil {
			return
		}
		again, err := p.Marshal()
		if err != nil {
			t.Fatalf("%x: what Unmarshal gave does not marshal: %v", b, err)
		}
		if len(again) > len(b) {
			t.Fatalf("%x: grew to %x", b, again)
		}
		q, err := Unmarshal(again)
		if err != nil || q.String() != p.String() {
			t.Fatalf("%x: %s turned into %s (%v)", b, p, q, err)
		}
		r, err := Parse(p.String())
		if err != nil {
			t.Fatalf("%x: own text: %v", b, err)
		}
		third, err := r.Marshal()
		if err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%x: text %s gives %x, want %x (%v)", b, p, third, again, err)
		}
		if p.Quote != nil {
			p.Quote.Rewrite(p.IP.Src, p.IP.Dst, 1, 2)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("tcp 10.244.1.2:1234 > 10.96.0.1:80 S ttl=64")
	f.Add("icmp 10.0.0.1 > 10.244.1.2 error code=3 [udp 10.244.1.2:999 > 10.0.0.1:53 l4=0x0011223344556677 tot=99]")
	f.Add("ip 1.1.1.1 > 2.2.2.2 proto=3 data=\"a b\" ipopts=0x01010101")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		if q, err := Parse(p.String()); err != nil || q.String() != p.String() {
			t.Fatalf("%q: %s, again %v (%v)", s, p, q, err)
		}
	})
}
