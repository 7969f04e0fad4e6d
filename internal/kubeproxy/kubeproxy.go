// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy knows whether a kube-proxy carries Services on this node, and removes what one
// left behind when it is gone: its chains of iptables (of both kinds), its nftables tables, its
// ipsets and its device. Nothing is touched that kube-proxy does not name, and nothing while one
// may run.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Config is what a Watch needs.
type Config struct {
	Log *slog.Logger
	// Enabled says whether to clean up (bpfKubeProxyIptablesCleanupEnabled).
	Enabled func() bool
	// Pod returns the name of a pod of kube-proxy on this node, "" when there is none; ok is false
	// while the cluster is not known.
	Pod func() (name string, ok bool)
	// Alongside says that Services are left to a kube-proxy that runs here. Otherwise Weir carries
	// them all the same.
	Alongside bool
	// Before is called before rules are taken away, by which open connections may be translated.
	// nil = nobody asks.
	Before func() error
	// Changed is called after Handling changed. nil = nobody asks.
	Changed func(Handling)

	proc string // where processes are listed; "" = /proc
}

// Handling says who carries Services on this node.
type Handling struct {
	// Proxy: a kube-proxy does: it runs, and its rules are there.
	Proxy bool
	// Mode is that of its rules (ModeIPTables, ModeNFTables); "" where there are none, whoever
	// runs.
	Mode string
	// Seen is by what a kube-proxy is seen, rules or not; "" when none is.
	Seen string
}

const (
	// interval is the time between two looks for what is to be removed.
	interval = 20 * time.Second
	// quiet is how many such looks in a row must find no kube-proxy: one that is restarted is gone
	// for moments.
	quiet = 2
	// seldom is how many looks pass between two clean-ups when nothing was left.
	seldom = 15
	// lookEvery is the time between two looks at who carries Services.
	lookEvery = 2 * time.Second
	// patience is how many of these in a row must find no kube-proxy before Services are taken over
	// from one whose rules are still there.
	patience = 5
	// bare is how many of them in a row must find no rules of a kube-proxy that carried Services:
	// it may write them anew.
	bare = 2
)

// Watch looks who carries Services, and cleans up.
type Watch struct {
	cfg    Config
	finder ruleFinder
	absent int    // looks in a row that saw no kube-proxy
	bare   int    // looks in a row that saw no rules of one
	logged string // what was logged

	mu  sync.Mutex
	now Handling
}

// New looks for the first time: where rules of a kube-proxy are there, one carries Services until
// it is known that none runs.
func New(cfg Config) *Watch {
	w := &Watch{cfg: cfg}
	if cfg.Alongside {
		w.look()
	}
	return w
}

// Handling returns what was found last.
func (w *Watch) Handling() Handling {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// Run looks until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	clean := time.NewTicker(interval)
	defer clean.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	if !w.cfg.Alongside {
		look.Stop()
	}
	c := cleaner{cfg: w.cfg}
	w.clean(&c)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clean.C:
			w.clean(&c)
		case <-look.C:
			w.look()
		}
	}
}

// clean lets a cleaner look, unless a kube-proxy carries Services: then it counts from the
// beginning when none does.
func (w *Watch) clean(c *cleaner) {
	if w.Handling().Proxy {
		c.gone = 0
		return
	}
	c.look()
}

// look finds out who carries Services now.
func (w *Watch) look() {
	mode, err := w.finder.mode()
	if err != nil {
		w.log("cannot determine whether a kube-proxy's rules are there; what was found before stays", "error", err)
		return
	}
	who, known := "", true
	if mode != "" {
		who, known = running(w.cfg)
	} else if name, _ := w.cfg.Pod(); name != "" {
		who = "pod " + name // it begins, or somebody else takes its rules away
	}
	before := w.Handling()
	now := w.decide(mode, who, known)
	if now == before {
		return
	}
	w.mu.Lock()
	w.now = now
	w.mu.Unlock()
	switch {
	case now.Proxy && !before.Proxy:
		w.log("a kube-proxy carries Services on this node; they are left to it", "seen", now.Seen, "mode", now.Mode)
	case !now.Proxy && before.Proxy:
		w.log("no kube-proxy carries Services on this node any more; they are taken over", "rules left", now.Mode)
	}
	if w.cfg.Changed != nil {
		w.cfg.Changed(now)
	}
}

// log says something once.
func (w *Watch) log(what string, args ...any) {
	if text := what + fmt.Sprint(args...); text != w.logged {
		w.logged = text
		w.cfg.Log.Info(what, args...)
	}
}

// decide reports who carries Services, by the rules that are there, who runs, and whether that can
// be said.
func (w *Watch) decide(mode, who string, known bool) Handling {
	before, now := w.now, Handling{Mode: mode, Seen: who}
	if mode != "" {
		w.bare = 0
	} else if w.bare++; before.Proxy && w.bare < bare {
		return before
	}
	switch {
	case who != "", before.Mode == "":
		w.absent = 0
	case known:
		w.absent++
	}
	switch {
	case mode == "":
	case who != "":
		now.Proxy = true
	case !known, w.absent < patience:
		// It may be restarted, or not be seen yet: rules that come by themselves, or are there at
		// the start, are somebody's.
		now.Proxy = before.Proxy || before.Mode == ""
	}
	return now
}

// cleaner cleans up when no kube-proxy runs.
type cleaner struct {
	cfg        Config
	gone, wait int
	logged     string
}

func (c *cleaner) look() {
	if c.wait--; !c.cfg.Enabled() || c.wait >= 0 {
		return
	}
	who, known := running(c.cfg)
	switch {
	case who != "":
		if c.gone = 0; c.logged != who && !c.cfg.Alongside {
			c.cfg.Log.Warn("a kube-proxy runs on this node; its rules are left alone. Weir does its work: remove it", "seen", who)
		}
		c.logged = who
	case !known:
	default:
		if c.gone++; c.gone >= quiet {
			c.wait, c.logged = cleanOnce(c.cfg), ""
		}
	}
}

// Removed counts what a clean-up removed.
type Removed struct {
	Rules, Chains, Tables, Sets, Devices int
}

func (r Removed) total() int { return r.Rules + r.Chains + r.Tables + r.Sets + r.Devices }

func (r *Removed) add(o Removed) {
	r.Rules += o.Rules
	r.Chains += o.Chains
	r.Tables += o.Tables
	r.Sets += o.Sets
	r.Devices += o.Devices
}

// cleanOnce cleans up and returns after how many looks to do so again.
func cleanOnce(cfg Config) int {
	log := cfg.Log
	if there, err := RulesThere(); (there || err != nil) && cfg.Before != nil {
		if err := cfg.Before(); err != nil {
			log.Warn("some open connections may be lost with a kube-proxy's rules", "error", err)
		}
	}
	removed, err := Clean()
	if removed.total() > 0 {
		log.Info("removed what a kube-proxy had left behind", "rules", removed.Rules, "chains", removed.Chains, "tables", removed.Tables,
			"ipsets", removed.Sets, "devices", removed.Devices)
	}
	if err != nil {
		log.Warn("part of what a kube-proxy left behind stays; trying again", "error", err)
		return 0
	}
	return seldom
}

// Clean removes what a kube-proxy left behind in this network namespace. The caller made sure that
// none runs.
func Clean() (Removed, error) {
	var out Removed
	var errs []error
	// The sets last: rules refer to them.
	for _, part := range []struct {
		what string
		do   func() (Removed, error)
	}{{"nftables", cleanNFT}, {"iptables", cleanIPTables}, {"ipsets", cleanSets}, {"device kube-ipvs0", cleanDevice}} {
		r, err := part.do()
		out.add(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.what, err))
		}
	}
	return out, errors.Join(errs...)
}

// names are kube-proxy's chains, and prefixes those that go on with a digest. KUBE-FIREWALL,
// KUBE-KUBELET-CANARY, KUBE-MARK-DROP and KUBE-IPTABLES-HINT are the kubelet's, KUBE-ROUTER-* and
// KUBE-NWPLCY-* kube-router's.
var (
	names = map[string]bool{
		"KUBE-SERVICES": true, "KUBE-EXTERNAL-SERVICES": true, "KUBE-NODEPORTS": true, "KUBE-POSTROUTING": true, "KUBE-MARK-MASQ": true,
		"KUBE-FORWARD": true, "KUBE-PROXY-FIREWALL": true, "KUBE-PROXY-CANARY": true, "KUBE-NODE-PORT": true, "KUBE-LOAD-BALANCER": true,
		"KUBE-SOURCE-RANGES-FIREWALL": true, "KUBE-IPVS-FILTER": true, "KUBE-IPVS-OUT-FILTER": true,
	}
	prefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-FW-", "KUBE-XLB-"}
)

// digest is the length of what follows a prefix: base32 of a SHA-256, cut.
const digest = 16

// ours reports whether a chain of iptables is kube-proxy's.
func ours(chain string) bool {
	if names[chain] {
		return true
	}
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(chain, p); ok {
			return len(rest) == digest && strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
		}
	}
	return false
}

// sets are kube-proxy's ipsets of IPv4 (mode IPVS); those of IPv6 have KUBE-6- in place of KUBE-.
var sets = map[string]bool{
	"KUBE-LOOP-BACK": true, "KUBE-CLUSTER-IP": true, "KUBE-EXTERNAL-IP": true, "KUBE-EXTERNAL-IP-LOCAL": true,
	"KUBE-LOAD-BALANCER": true, "KUBE-LOAD-BALANCER-LOCAL": true, "KUBE-LOAD-BALANCER-FW": true,
	"KUBE-LOAD-BALANCER-SOURCE-IP": true, "KUBE-LOAD-BALANCER-SOURCE-CIDR": true,
	"KUBE-NODE-PORT-TCP": true, "KUBE-NODE-PORT-UDP": true, "KUBE-NODE-PORT-SCTP-HASH": true,
	"KUBE-NODE-PORT-LOCAL-TCP": true, "KUBE-NODE-PORT-LOCAL-UDP": true, "KUBE-NODE-PORT-LOCAL-SCTP-HASH": true,
	"KUBE-HEALTH-CHECK-NODE-PORT": true, "KUBE-IPVS-IPS": true,
}

func ourSet(name string) bool {
	return sets[name] || strings.HasPrefix(name, "KUBE-6-") && sets["KUBE-"+strings.TrimPrefix(name, "KUBE-6-")]
}
