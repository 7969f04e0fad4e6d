package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	minTimeout = time.Second
	maxTimeout = 7 * 24 * time.Hour
)

// applyTimeouts reads bpfConntrackTimeouts: an object in the resource, "TCPSynSent=20s,UDPTimeout=60s" in
// the environment. It is all or nothing: one bad value, and none is taken.
func applyTimeouts(e *Effective, text string) (notes []string, err error) {
	values, err := timeoutValues(text)
	if err != nil {
		return nil, err
	}
	t := e.Settings.Timeouts
	targets := map[string]*time.Duration{
		"tcpsynsent": &t.TCPSynSent, "tcpestablished": &t.TCPEstablished, "tcpresetseen": &t.TCPClosing,
		"udptimeout": &t.UDP, "icmptimeout": &t.ICMP, "generictimeout": &t.Generic,
	}
	// What these two say is not told apart by the programs.
	fixed := map[string]string{"creationgraceperiod": "10s", "tcpfinsseen": "auto"}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		if def, ok := fixed[strings.ToLower(name)]; ok {
			if !strings.EqualFold(value, def) {
				notes = append(notes, fmt.Sprintf(".%s = %s: not supported yet; it has no effect", name, value))
			}
			continue
		}
		target := targets[strings.ToLower(name)]
		if target == nil {
			return nil, fmt.Errorf("has no part named %q", name)
		}
		if strings.EqualFold(value, "auto") {
			continue // the default
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
	return notes, nil
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
