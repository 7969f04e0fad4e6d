// Package kubeproxy removes what a kube-proxy left behind on this node when it is gone: its chains of
// iptables (of both kinds), its nftables tables, its ipsets and its device. Nothing is touched that
// kube-proxy does not name, and nothing while one may run.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Config is what a Cleaner needs.
type Config struct {
	Log *slog.Logger
	// Enabled says whether to clean up (bpfKubeProxyIptablesCleanupEnabled).
	Enabled func() bool
	// Pod returns the name of a pod of kube-proxy on this node, "" when there is none; ok is false while
	// the cluster is not known.
	Pod func() (name string, ok bool)
}

const (
	// interval is the time between two looks.
	interval = 20 * time.Second
	// quiet is how many looks in a row must find no kube-proxy: one that is restarted is gone for moments.
	quiet = 2
	// seldom is how many looks pass between two clean-ups when nothing was left.
	seldom = 15
)

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

// Run looks until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	gone, wait, told := 0, 0, ""
	for {
		if wait--; cfg.Enabled() && wait < 0 {
			who, known := running(cfg)
			switch {
			case who != "":
				if gone = 0; told != who {
					cfg.Log.Warn("a kube-proxy runs on this node; its rules are left alone. Weir does its work: remove it", "seen", who)
				}
				told = who
			case !known:
			default:
				if gone++; gone >= quiet {
					wait, told = cleanOnce(cfg.Log), ""
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// cleanOnce cleans up and returns after how many looks to do so again.
func cleanOnce(log *slog.Logger) int {
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

// Clean removes what a kube-proxy left behind in this network namespace. The caller made sure that none
// runs.
func Clean() (Removed, error) {
	var out Removed
	var errs []error
	// The sets last: rules refer to them.
	for _, part := range []struct {
		what string
		do   func() (Removed, error)
	}{{"nftables", cleanNFT}, {"iptables (legacy)", cleanLegacy}, {"ipsets", cleanSets}, {"device kube-ipvs0", cleanDevice}} {
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
