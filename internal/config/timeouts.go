// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	minTimeout = time.Second
	maxTimeout = 7 * 24 * time.Hour
	// gracePeriod is CreationGracePeriod's default.
	gracePeriod = 10 * time.Second
)

// applyTimeouts reads bpfConntrackTimeouts: an object in the resource,
// "TCPSynSent=20s,UDPTimeout=60s" in the environment. It is all or nothing: one bad value, and none
// is taken.
func applyTimeouts(e *Effective, text string) (notes []string, err error) {
	values, err := timeoutValues(text)
	if err != nil {
		return nil, err
	}
	t := e.Settings.Timeouts
	targets := map[string]*time.Duration{
		"tcpsynsent": &t.TCPSynSent, "tcpestablished": &t.TCPEstablished, "tcpresetseen": &t.TCPReset, "tcpfinsseen": &t.TCPFins,
		"udptimeout": &t.UDP, "icmptimeout": &t.ICMP, "generictimeout": &t.Generic,
	}
	// Elsewhere it keeps a cleaner from entries of which only half is written. Here both are there
	// before the first packet goes on, and each lives for its time-out at least.
	unused := time.Duration(0)
	targets["creationgraceperiod"] = &unused
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		target := targets[strings.ToLower(name)]
		if target == nil {
			return nil, fmt.Errorf("has no part named %q", name)
		}
		if strings.EqualFold(value, "auto") {
			if d := e.linux[strings.ToLower(name)]; d >= minTimeout && d <= maxTimeout {
				*target = d
			}
			continue // else the default
		}
		d, err := duration(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is neither a duration such as 20s nor Auto", name, value)
		}
		if d < minTimeout || d > maxTimeout {
			return nil, fmt.Errorf("%s: %s is out of range, which is %s..%s", name, value, minTimeout, maxTimeout)
		}
		*target = d
	}
	e.Settings.Timeouts = t
	if unused != 0 && unused != gracePeriod {
		notes = append(notes, fmt.Sprintf(": CreationGracePeriod = %s has no effect: entries are written whole, and each lives for its time-out at least", unused))
	}
	return notes, nil
}

// linuxTimeouts are the kernel's settings that Auto means, below net/netfilter, by the part's
// name in lower case.
var linuxTimeouts = map[string]string{
	"tcpsynsent": "nf_conntrack_tcp_timeout_syn_sent", "tcpestablished": "nf_conntrack_tcp_timeout_established",
	"tcpfinsseen": "nf_conntrack_tcp_timeout_time_wait", "generictimeout": "nf_conntrack_generic_timeout", "icmptimeout": "nf_conntrack_icmp_timeout",
}

// ReadLinux asks for the kernel's time-outs (read returns seconds), which Auto means. Where
// the kernel has none, as without the module nf_conntrack, Auto is Weir's default.
func (r *Resolver) ReadLinux(read func(path ...string) (int, error)) {
	r.linux = map[string]time.Duration{}
	for part, name := range linuxTimeouts {
		if seconds, err := read("net", "netfilter", name); err == nil {
			r.linux[part] = time.Duration(seconds) * time.Second
		}
	}
}

func timeoutValues(text string) (map[string]string, error) {
	values := map[string]string{}
	if strings.HasPrefix(text, "{") {
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return nil, fmt.Errorf("is not an object of durations")
		}
		return values, nil
	}
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("part %q is not of the form name=duration", part)
		}
		values[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	return values, nil
}

// applyFlowInterval reads flowLogsFlushInterval.
func applyFlowInterval(e *Effective, text string) ([]string, error) {
	d, err := duration(text)
	if err != nil {
		return nil, err
	}
	if d < time.Second || d > time.Hour {
		return nil, fmt.Errorf("%s is not between 1s and 1h", d)
	}
	if e.flowInterval = d; e.FlowRecords > 0 {
		e.FlowRecords = d
	}
	return nil, nil
}

// applyFlowAggregation reads flowLogsFileAggregationKindForAllowed.
func applyFlowAggregation(e *Effective, text string) ([]string, error) {
	kind, err := strconv.Atoi(text)
	if err != nil || kind < 0 || kind > 3 {
		return nil, fmt.Errorf("%q is no number from 0 to 3", text)
	}
	e.FlowAggregation = min(kind, 1)
	if kind > 1 {
		return []string{" = " + text + ": as 1; pods of a workload, and destination ports, are told apart"}, nil
	}
	return nil, nil
}
