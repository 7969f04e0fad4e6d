// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/nftables"
)

// TestDecide: who carries Services follows from the rules that are there and from who runs; a
// kube-proxy that is restarted keeps them, one that is gone does not.
func TestDecide(t *testing.T) {
	type look struct {
		mode, who string
		unknown   bool
		before    bool // what was found before is said
		times     int
		want      bool
	}
	for name, looks := range map[string][]look{
		"nobody":                             {{times: 9}},
		"it begins, and its rules come":      {{who: "pod"}, {mode: ModeNFTables, who: "pod", times: 9, want: true}},
		"rules come before it is seen":       {{times: 9}, {mode: ModeIPTables, want: true}, {mode: ModeIPTables, who: "port", want: true}},
		"nobody keeps rules that came":       {{times: 9}, {mode: ModeIPTables, times: patience, want: true}, {mode: ModeIPTables, times: 9}},
		"it is there at the start":           {{mode: ModeNFTables, unknown: true, times: 20, want: true}, {mode: ModeNFTables, who: "pod", want: true}},
		"nobody is there at the start":       {{mode: ModeNFTables, unknown: true, times: 20, want: true}, {mode: ModeNFTables, times: patience - 1, want: true}, {mode: ModeNFTables, times: 9}},
		"it is restarted":                    {{mode: ModeNFTables, who: "pod", want: true}, {mode: ModeNFTables, times: patience - 1, want: true}, {mode: ModeNFTables, who: "pod", want: true}, {mode: ModeNFTables, times: patience - 1, want: true}},
		"its rules go before it, and return": {{mode: ModeNFTables, who: "pod", want: true}, {who: "pod", before: true, want: true}, {who: "pod", times: 3}, {mode: ModeNFTables, who: "pod", want: true}},
		"its rules are written anew": {{mode: ModeIPTables, who: "pod", want: true}, {who: "pod", before: true, want: true}, {mode: ModeIPTables, who: "pod", want: true},
			{who: "pod", before: true, want: true}, {mode: ModeIPTables, who: "pod", want: true}},
		"it goes, comes back to its rules": {{mode: ModeNFTables, who: "pod", want: true}, {mode: ModeNFTables, times: patience - 1, want: true}, {mode: ModeNFTables, times: 3}, {mode: ModeNFTables, who: "pod", want: true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Watch{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
			for i, l := range looks {
				for range max(l.times, 1) {
					mode := l.mode
					if l.before {
						mode = w.now.Mode
					}
					w.now = w.decide(l.mode, l.who, !l.unknown)
					if w.now.Proxy != l.want || w.now.Mode != mode || w.now.Seen != l.who {
						t.Fatalf("look %d: %+v, want %t", i, w.now, l.want)
					}
				}
			}
		})
	}
}

// TestRulesAreSeen: rules of each mode, and of each kind of iptables, are distinguished from those
// of others.
func TestRulesAreSeen(t *testing.T) {
	for _, v := range []string{"", "6"} {
		for _, kind := range []string{"legacy", "nft"} {
			t.Run("iptables-"+kind+v, func(t *testing.T) {
				inNamespace(t, func() {
					var f ruleFinder
					expect := func(want string) {
						t.Helper()
						for range 2 { // the second time by what is remembered
							if mode, err := f.mode(); err != nil || mode != want {
								t.Errorf("mode %q, %v; want %q", mode, err, want)
							}
						}
					}
					expect("")
					sh(t, forFamily(nothing.Replace(others), v), "ip%stables-%s-restore", v, kind)
					expect("")
					sh(t, forFamily(proxies.Replace(others), v), "ip%stables-%s-restore", v, kind)
					expect(ModeIPTables)
					if _, err := Clean(); err != nil {
						t.Error(err)
					}
					expect("")
				})
			})
		}
	}
	t.Run("nftables", func(t *testing.T) {
		inNamespace(t, func() {
			var f ruleFinder
			sh(t, "table inet kube-proxy {\n}\ntable ip others {\n}\n", "nft -f -")
			if mode, err := f.mode(); mode != "" || err != nil {
				t.Errorf("others': %q, %v", mode, err)
			}
			sh(t, "table ip6 kube-proxy {\n chain services {\n }\n}\n", "nft -f -")
			if mode, err := f.mode(); mode != ModeNFTables || err != nil {
				t.Errorf("%q, %v", mode, err)
			}
		})
	})
}

// TestWatch: rules that nobody keeps are somebody's at the start, and are reported to who asks;
// they are not cleaned up while they are.
func TestWatch(t *testing.T) {
	inNamespace(t, func() {
		sh(t, "table ip kube-proxy {\n chain services {\n }\n}\n", "nft -f -")
		pod, known := "", false
		var logged []Handling
		w := New(Config{Log: slog.New(slog.DiscardHandler), Alongside: true, proc: t.TempDir(), Enabled: func() bool { return true },
			Pod: func() (string, bool) { return pod, known }, Changed: func(h Handling) { logged = append(logged, h) }})
		if h := w.Handling(); !h.Proxy || h.Mode != ModeNFTables {
			t.Errorf("at the start: %+v", h)
		}
		known = true
		for range patience {
			w.look()
		}
		if h := w.Handling(); h.Proxy {
			t.Errorf("nobody runs: %+v", h)
		}
		pod = "kube-system/kube-proxy-x"
		w.look()
		if h := w.Handling(); !h.Proxy || !strings.Contains(h.Seen, pod) {
			t.Errorf("it runs: %+v", h)
		}
		sh(t, "", "nft delete table ip kube-proxy")
		w.look()
		w.look()
		if h := w.Handling(); h.Proxy || !strings.Contains(h.Seen, pod) {
			t.Errorf("its rules are gone: %+v", h)
		}
		if len(logged) != 4 {
			t.Errorf("reported %+v", logged)
		}
	})
}

// TestChainThatCannotBeRead: what the kernel does not report is no chain that is not there.
func TestChainThatCannotBeRead(t *testing.T) {
	inNamespace(t, func() {
		sh(t, "table ip nat {\n chain mine {\n }\n}\n", "nft -f -")
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		table := &nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4}
		for chain, want := range map[string]bool{"mine": true, servicesChain: false} {
			if has, err := hasChain(c, table, chain); has != want || err != nil {
				t.Errorf("%s: %t, %v", chain, has, err)
			}
		}
		// A name that is longer than the kernel takes is refused with another error.
		if has, err := hasChain(c, table, strings.Repeat("x", 300)); has || err == nil {
			t.Errorf("an error is %t, %v", has, err)
		}
	})
}

// TestCleanerCounts: looks that found nobody before a kube-proxy carried Services do not count once
// it is gone.
func TestCleanerCounts(t *testing.T) {
	w := &Watch{now: Handling{Proxy: true, Mode: ModeIPTables}}
	c := cleaner{cfg: Config{Enabled: func() bool { return true }}, gone: quiet - 1}
	w.clean(&c)
	if c.gone != 0 {
		t.Errorf("%d looks are counted", c.gone)
	}
}
