// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"
)

// Line describes a replica in one line, and what of it is not healthy in others.
func (r *Report) Line(replica string, now time.Time) (line string, faults []string) {
	age := now.Sub(r.At)
	line = fmt.Sprintf("%s on %s: %d nodes", replica, r.Node, r.Nodes)
	if r.Nodes > 0 {
		line += fmt.Sprintf("; behind: worst %s%s, median %s", ms(r.BehindMost), in(r.BehindNode), ms(r.BehindMedian))
	}
	if r.Views > 0 {
		line += fmt.Sprintf("; views: median %s, largest %s", Bytes(r.ViewMedian), Bytes(r.ViewMost))
		if r.Views < r.Nodes {
			line += fmt.Sprintf(" (of %d)", r.Views)
		}
	}
	switch {
	case age > SilentAfter:
		// The report is written through the API server: it is older than the outage.
		line += "; no report " + Since(r.At, now)
		faults = append(faults, fmt.Sprintf("fan-out %s has not reported %s: it is without the API server, or hangs; its agents keep what they have; see `kubectl -n kube-system logs %s`",
			replica, Since(r.At, now), replica))
	case !r.Connected:
		line += "; without the API server " + Since(r.Since, now)
		faults = append(faults, fmt.Sprintf("fan-out %s is out of touch with the API server %s, and what it sends may be as old: %s", replica, Since(r.Since, now), r.Error))
	default:
		line += "; in touch with the API server " + Since(r.Since, now)
	}
	if r.Late > 0 {
		var names []string
		for _, l := range r.LateNodes {
			names = append(names, l.Node+" "+ms(l.BehindMs))
		}
		text := strings.Join(names, ", ")
		if more := r.Late - len(r.LateNodes); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		faults = append(faults, fmt.Sprintf("fan-out %s: agents that have waited for changes for more than %s: %s", replica, LateAfter, text))
	}
	return line, faults
}

func in(node string) string {
	if node == "" {
		return ""
	}
	return " (" + node + ")"
}

func ms(n int64) string { return (time.Duration(n) * time.Millisecond).String() }

// Since says since when something is so, and how long that is.
func Since(at, now time.Time) string {
	d := max(0, now.Sub(at)).Round(time.Second)
	form := time.TimeOnly
	if d >= 12*time.Hour {
		form = time.DateTime
	}
	return "since " + at.In(now.Location()).Format(form) + " (" + d.String() + ")"
}

// Bytes is a size for people.
func Bytes(n int64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
