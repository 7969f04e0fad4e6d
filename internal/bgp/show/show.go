// SPDX-License-Identifier: Apache-2.0

// Package show writes what nodes answer about their BGP for a reader: peers, routes, and a session.
package show

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/terminal"
)

// Answer is what one node says, or why it says nothing.
type Answer[T any] struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"`
	BGP   *T     `json:"bgp,omitempty"`
	// Nothing: the agent answered that it has nothing to say of this.
	Nothing bool `json:"-"`
}

// Answers are those of nodes.
type Answers[T any] []Answer[T]

// Silent reports whether an agent did not answer.
func (a Answers[T]) Silent() bool {
	for _, one := range a {
		if one.Error != "" && !one.Nothing {
			return true
		}
	}
	return false
}

// NotInUse is said where no node uses BGP.
const NotInUse = "BGP is not in use: there is neither a BGPConfiguration default nor a BGPPeer (docs/guides/bgp.md)."

// PeersWell reports whether all sessions that should be are established.
func (a Answers[T]) PeersWell() bool {
	for _, one := range a {
		s, is := any(one.BGP).(*feed.Shown)
		if !is || s == nil || s.Desired == nil {
			continue
		}
		if s.Status == nil {
			return false
		}
		if _, established := s.Status.Count(); established < len(s.Desired.Peers) {
			return false
		}
	}
	return true
}

// notes says which nodes have not answered, and why.
func notes[T any](out io.Writer, answers Answers[T]) {
	for _, a := range answers {
		if a.Error != "" {
			a.note(out)
		}
	}
}

// note says why a node has said nothing.
func (a *Answer[T]) note(out io.Writer) {
	node := "node " + a.Node + ": "
	fmt.Fprintln(out, terminal.OneLine(node+strings.TrimPrefix(a.Error, node)))
}

// used are the answers of nodes that use BGP.
func used(answers Answers[feed.Shown]) Answers[feed.Shown] {
	return slices.DeleteFunc(slices.Clone(answers), func(a Answer[feed.Shown]) bool { return a.BGP == nil || a.BGP.Desired == nil })
}

// Peers writes the sessions of nodes, a line each.
func Peers(out io.Writer, answers Answers[feed.Shown]) error {
	in := used(answers)
	var lines [][]string
	var after []string
	all, established := 0, 0
	for _, a := range in {
		all += len(a.BGP.Desired.Peers)
		if a.BGP.Status == nil {
			after = append(after, fmt.Sprintf("node %s: no BGP process runs; see kubectl -n kube-system get pods -l k8s-app=weir-bgp -o wide", a.Node))
			continue
		}
		if a.BGP.Status.Restoring {
			after = append(after, fmt.Sprintf("node %s: the BGP process has begun again; routes of the one before stay until the peers have sent theirs", a.Node))
		}
		if e := a.BGP.Status.Err; e != "" {
			after = append(after, fmt.Sprintf("node %s: %s", a.Node, e))
		}
		for _, p := range a.BGP.Status.Peers {
			why := ""
			if p.Established() {
				established++
			} else {
				why = p.LastError
			}
			lines = append(lines, []string{a.Node, p.Addr.String(), p.Name, fmt.Sprint(p.ASN), p.State, since(p.Since), fmt.Sprint(p.Received), fmt.Sprint(p.Advertised), fmt.Sprint(p.Flaps), why})
		}
	}
	if len(lines) > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "NODE\tPEER\tNAME\tAS\tSTATE\tFOR\tRECEIVED\tSENT\tFLAPS\tLAST ERROR")
		for _, l := range lines {
			row(w, l)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, text := range after {
		fmt.Fprintln(out, terminal.OneLine(text))
	}
	notes(out, answers)
	switch {
	case len(in) > 0:
		fmt.Fprintf(out, "%d of %d sessions are established.\n", established, all)
	case !answers.Silent():
		fmt.Fprintln(out, NotInUse)
	}
	return nil
}

// row writes the cells of a line; what comes from nodes does not control the terminal.
func row(w io.Writer, cells []string) {
	for i, c := range cells {
		cells[i] = terminal.Dash(terminal.OneLine(c))
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// since says how long ago a time is.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return max(0, time.Since(t)).Round(time.Second).String()
}

// Routes prints at most limit lines of a node; 0 = all.
func Routes(out io.Writer, answers Answers[feed.Answer], sent bool, limit int) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	rows := 0
	var after []string
	for _, a := range answers {
		if a.BGP == nil {
			continue
		}
		more := a.BGP.More
		for i, r := range a.BGP.Routes {
			if limit > 0 && i == limit {
				more += len(a.BGP.Routes) - i
				break
			}
			if rows++; rows == 1 {
				fmt.Fprintln(w, "NODE\tPREFIX\tNEXT HOP\tFROM\tAS PATH\tSTATE")
			}
			row(w, []string{a.Node, r.Prefix.String(), addrText(r.NextHop), from(r, sent), r.Path, routeState(r, sent)})
		}
		if more > 0 {
			after = append(after, fmt.Sprintf("node %s: %d routes more; name a PREFIX, or --limit 0", a.Node, more))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range after {
		fmt.Fprintln(out, terminal.OneLine(text))
	}
	notes(out, answers)
	if rows == 0 && !answers.Silent() {
		fmt.Fprintln(out, "There are no such routes.")
	}
	return nil
}

func from(r feed.Route, sent bool) string {
	if sent {
		return ""
	}
	if !r.Peer.IsValid() {
		return "this node"
	}
	return r.Peer.String()
}

// routeState says what a route is good for.
func routeState(r feed.Route, sent bool) string {
	var words []string
	if r.Best {
		words = append(words, "best")
	}
	if r.Stale {
		words = append(words, "stale")
	}
	switch {
	case sent || !r.Peer.IsValid():
	case r.Installed:
		words = append(words, "in kernel by "+r.Interface)
		if r.Gateway != r.NextHop {
			words[len(words)-1] += " to " + addrText(r.Gateway)
		}
	case r.Best:
		words = append(words, "not in kernel")
	}
	return strings.Join(words, ", ")
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// Neighbours writes all that nodes say of one session; peer is the address of the other end.
func Neighbours(out io.Writer, answers Answers[feed.Shown], peer string) error {
	shown := 0
	for _, a := range answers {
		if a.BGP == nil || a.BGP.Neighbour == nil {
			continue
		}
		if shown++; shown > 1 {
			fmt.Fprintln(out)
		}
		if err := printNeighbour(out, a.Node, a.BGP.Neighbour); err != nil {
			return err
		}
	}
	for _, a := range answers { // that a node has no such session is no news where another one has it
		if a.Error != "" && (!a.Nothing || len(answers) == 1) {
			a.note(out)
		}
	}
	if shown == 0 && len(answers) > 1 && !answers.Silent() {
		fmt.Fprintf(out, "No node has a session with %s; weir bgp peers lists those that there are.\n", terminal.OneLine(peer))
	}
	return nil
}

func printNeighbour(out io.Writer, node string, n *feed.Neighbour) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(what, format string, args ...any) {
		fmt.Fprintf(w, "  %s:\t%s\n", what, terminal.OneLine(fmt.Sprintf(format, args...)))
	}
	fmt.Fprintln(w, terminal.OneLine(fmt.Sprintf("%s with %s (%s)", node, n.Addr, n.Name)))
	state := n.State
	if s := since(n.Since); s != "" {
		state += " for " + s
	}
	line("State", "%s, ended %d times", state, n.Flaps)
	if n.LastError != "" {
		line("Ended last by", "%s", n.LastError)
	}
	if n.BFD != "" {
		line("BFD", "%s", n.BFD)
	}
	kind := "external"
	if n.ASN == n.LocalASN {
		kind = "internal"
	}
	line("AS", "%d here, %d there (%s)", n.LocalASN, n.ASN, kind)
	line("Address here", "%s", terminal.Dash(addrText(n.LocalAddr)))
	begins := fmt.Sprintf("this node connects to port %d, or takes a connection of the peer", n.Port)
	if n.Passive {
		begins = "the peer connects"
	}
	line("Connection", "%s", begins)
	if n.RouterID.IsValid() {
		line("Router ID there", "%s", n.RouterID)
	}
	line("Password", "%s", yes(n.Password))
	if n.MinTTL > 0 {
		line("TTL security", "packets with a TTL below %d are dropped", n.MinTTL)
	}
	if n.ReflectsAs != "" {
		line("Route reflector", "routes are reflected to it with cluster ID %s", n.ReflectsAs)
	}
	if n.Hold > 0 {
		line("Timers", "hold %d s, keepalive %d s (asked for: %d s, %d s)", n.Hold, n.Keepalive, n.OwnHold, n.OwnKeepalive)
	} else {
		line("Timers", "asked for: hold %d s, keepalive %d s", n.OwnHold, n.OwnKeepalive)
	}
	restart := fmt.Sprintf("the peer is asked to keep routes for %d s", n.Restart)
	switch {
	case n.GracefulRestart && n.PeerRestart > 0:
		restart += fmt.Sprintf(", and does; it asks for %d s itself", n.PeerRestart)
	case n.GracefulRestart:
		restart += ", and does"
	case n.Established():
		restart += "; it does not"
	}
	line("Graceful restart", "%s", restart)
	for _, f := range n.Families {
		line(f.Name, "%d received, %d accepted, %d sent", f.Received, f.Accepted, f.Advertised)
	}
	line("Capabilities", "%s", capabilities(n))
	for _, m := range []struct {
		what string
		of   feed.Messages
	}{{"Messages received", n.Got}, {"Messages sent", n.Sent}} {
		line(m.what, "%d: %d OPEN, %d UPDATE, %d KEEPALIVE, %d ROUTE-REFRESH, %d NOTIFICATION", m.of.Total, m.of.Open, m.of.Update, m.of.Keepalive, m.of.Refresh, m.of.Notification)
	}
	return w.Flush()
}

func capabilities(n *feed.Neighbour) string {
	var words []string
	for _, c := range n.Capabilities {
		word := c.Name
		switch {
		case c.Ours && !c.Theirs && n.Established():
			word += " (here only)"
		case c.Theirs && !c.Ours:
			word += " (there only)"
		}
		words = append(words, word)
	}
	return terminal.Dash(strings.Join(words, ", "))
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
