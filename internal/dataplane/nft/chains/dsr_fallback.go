// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Handshakes of TCP whose answers go directly to the client. Where they do not arrive, the client
// gets its answers by the node that it asks: it sends its SYN again although it was answered a
// while ago, or leaves two handshakes unanswered and tries from another port. Until such a
// handshake is over, the flow's ct mark has one of two numbers that no node has: so no rule takes
// it for open and evaluated, and its packets come here. They go as routes say, because no routing
// rule knows these numbers.
const (
	SetDSRFallback = "fallen"             // clients that get their answers by the node that they ask
	setUnconfirmed = "straight-tried"     // clients that were answered, and have not gone on since
	setRetried     = "straight-retried"   // those of them that were answered more than once
	setTriedNow    = "straight-tried-now" // those whose first answer may be on its way

	dsrOpenChain           = "straight-way" // the first packet of what may be answered directly
	handshakeChain         = "shakes"       // the client's next ones
	handshakeReplyChain    = "shakes-back"  // the backend's
	handshakeDoneChain     = "shakes-over"
	handshakeRetriedChain  = "shakes-retried"
	handshakeRepeatedChain = "shakes-again" // a SYN that is repeated
	DsrFallbackChain       = "fall"         // its first rule counts
	admitHandshakeReply    = "admit-shakes-back"
	sentHandshakeChain     = "sent-shakes"
	dsrFallbackSize        = 16384 // as many as eBPF's; further ones do not fall back
)

// defaultUnacknowledged is what the kernel keeps a connection of TCP that was answered alone,
// unless somebody set it.
const defaultUnacknowledged = 60 * time.Second

// shakes begins a rule for a flow whose handshake is not over.
const duringHandshake = "ct mark and $shakes == $shakes "

// dsrFallbackChains follow handshakes. When one was answered says what is left of the time that
// connection tracking keeps it.
func dsrFallbackChains(f table.Family, t *table.Table, s *nodestate.State, at Indexes) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	times := s.Settings.DSRTimes
	note := func(set, who string, d time.Duration) string {
		return fmt.Sprintf("update @%s { $ip %s timeout %dms }", set, who, max(d, time.Millisecond).Milliseconds())
	}
	forget := []string{"delete @" + setUnconfirmed + " { $ip saddr }", "delete @" + setRetried + " { $ip saddr }"}
	const syn = "tcp flags & (syn | ack) == syn "
	over, back := "ct mark set ct mark and $rest", "meta mark set meta mark and $rest"
	if s.Settings.Chained { // answerByRoutes
		over, back = over+" or "+marks.Hex(marks.RoutesNumber<<marks.NodeShift), back+" or $routed"
	}
	chain(dsrOpenChain,
		"$ip saddr @"+SetDSRFallback+" return",
		syn+"$ip saddr @"+setRetried+" $ip saddr != @"+setTriedNow+" goto "+DsrFallbackChain,
		"meta mark set meta mark and $rest",
		syn+"meta mark set meta mark or "+marks.Hex(marks.OpeningNumber<<marks.NodeShift))
	rules := []string{"counter", note(SetDSRFallback, "saddr", times.Retry)}
	chain(DsrFallbackChain, append(rules, forget...)...)

	answered := "ct mark and $mask == " + marks.Hex(marks.RepliedNumber<<marks.NodeShift) + " "
	again := []string{"tcp flags & syn == 0 " + answered + "jump " + handshakeDoneChain}
	if left := cmp.Or(at.unacknowledged, defaultUnacknowledged) - times.Patience; left > 0 {
		again = append(again, syn+answered+fmt.Sprintf("ct expiration < %dms jump %s", left.Milliseconds(), handshakeRepeatedChain))
	}
	chain(handshakeChain, append(again, "meta mark set meta mark and $rest")...)
	chain(handshakeDoneChain, append(forget, over)...)
	chain(handshakeRepeatedChain,
		"meta mark and $mask == 0 meta mark set ether saddr map @"+expr.MapLinks,
		// Of a node port it is the node that was addressed, as for a first packet.
		"meta mark set ct original $ip daddr map @"+expr.MapNodes,
		"meta mark and $mask == 0 return",
		"ct mark set meta mark and $goal", // policy evaluates again
		"iifname $tunnel ct mark set ct mark or $came",
		"goto "+DsrFallbackChain)

	chain(handshakeReplyChain,
		"tcp flags & (syn | ack) != (syn | ack) "+over+" return", // data, or a refusal
		answered+"return",
		"ct mark set ct mark and $rest or "+marks.Hex(marks.RepliedNumber<<marks.NodeShift),
		"$ip daddr @"+setUnconfirmed+" goto "+handshakeRetriedChain,
		note(setTriedNow, "daddr", times.Patience),
		note(setUnconfirmed, "daddr", times.Tries))
	chain(handshakeRetriedChain, note(setUnconfirmed, "daddr", times.Tries), note(setRetried, "daddr", times.Tries))
	chain(admitHandshakeReply, "jump "+handshakeReplyChain, back)

	addr := f.Words().Addr
	for _, name := range []string{SetDSRFallback, setUnconfirmed, setRetried, setTriedNow} {
		t.Sets[name] = table.Set{Key: addr, Learned: true, Size: dsrFallbackSize}
	}
}

// unacknowledged reads that time.
func unacknowledged() (time.Duration, error) {
	seconds, err := kernel.Sysctl("net", "netfilter", "nf_conntrack_tcp_timeout_syn_recv")
	if errors.Is(err, os.ErrNotExist) { // connection tracking has not begun
		return defaultUnacknowledged, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading a time-out of connection tracking: %w", err)
	}
	return time.Duration(seconds) * time.Second, nil
}
