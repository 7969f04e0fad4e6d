// SPDX-License-Identifier: Apache-2.0

// Package flows makes records of connections of what a data plane reports of their directions, and
// of what policy denied: one record a connection and interval, with names for addresses and rules.
// A Collector keeps the latest in memory and answers questions about them. What it does not keep is
// counted, by reason.
package flows

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/events"
)

// Path is the question to an agent: its records, one JSON object a line, and a Line with Status
// last.
const Path = "/flows"

// The verdicts.
const (
	Allowed = "allowed"
	Denied  = "denied"  // by policy
	Dropped = "dropped" // allowed by policy, and dropped for Reason
)

// Flow is what a node has seen of one connection in one interval: in the direction in which it
// began, after a Service chose the backend.
type Flow struct {
	Start   time.Time `json:"start"` // of the connection
	End     time.Time `json:"end"`   // of what the record is about
	Node    string    `json:"node"`
	Verdict string    `json:"verdict"`
	Reason  string    `json:"reason,omitempty"` // of a drop: bpf/reasons.h
	// Ended says how the connection ended: closed, expired, replaced (by a newer one with the same
	// ports); empty = it goes on.
	Ended       string `json:"ended,omitempty"`
	Protocol    string `json:"protocol"`
	ICMP        string `json:"icmp,omitempty"` // "type/code"
	Source      Peer   `json:"source"`         // the client, as it came: no source NAT
	Destination Peer   `json:"destination"`    // the backend, where a Service chose one
	// Service is "namespace/name port http"; Asked is the address and port that the client asked.
	Service  string       `json:"service,omitempty"`
	Asked    string       `json:"asked,omitempty"`
	Egress   *events.End  `json:"egress,omitempty"`  // what policy said at the source, when it is a pod of this node
	Ingress  *events.End  `json:"ingress,omitempty"` // at the destination
	Rule     *events.Rule `json:"rule,omitempty"`    // that decided; absent = no policy selects either end here
	Path     string       `json:"path,omitempty"`    // of the client's packets: local, direct, vxlan, ipip, stack
	Return   string       `json:"return,omitempty"`  // of the answers
	HandedOn bool         `json:"handedOn,omitempty"`
	DSR      bool         `json:"dsr,omitempty"`
	SNAT     bool         `json:"snat,omitempty"` // the source became the node's
	Sent     Counters     `json:"sent"`
	Received Counters     `json:"received"`
	TCPFlags string       `json:"tcpFlags,omitempty"` // that open and close, of both directions: "SYN ACK FIN"
	// Handshake is how many microseconds that of TCP took, from SYN to the client's ACK: a round
	// trip between both ends. 0 = not known. Of a sum it is that of the slowest.
	Handshake uint32 `json:"handshakeMicroseconds,omitempty"`
	// Retransmitted are segments of TCP with data that brought nothing beyond those before; nil =
	// not counted. Of a sum they are those of the records that counted them.
	Retransmitted *Retransmitted `json:"retransmitted,omitempty"`
	// Records is of how many records this one is the sum, with so many Connections that ended: a
	// store makes what is old coarser, and a node may aggregate what it allowed (Aggregation). Such
	// a record has no source port, TCPFlags and Ended. 0 = it is of one connection.
	Records     uint32 `json:"records,omitempty"`
	Connections uint32 `json:"connections,omitempty"`
}

// Counters of one direction. Of what was denied Bytes is 0: they are not known.
type Counters struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // of IP
}

func (c *Counters) add(packets, bytes uint64) { c.Packets, c.Bytes = c.Packets+packets, c.Bytes+bytes }

// Retransmitted are segments of the client and of the server, of those in Sent and Received.
type Retransmitted struct {
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
}

// Peer is one end.
type Peer struct {
	Address   netip.Addr        `json:"address"`
	Port      uint16            `json:"port,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Pod       string            `json:"pod,omitempty"`
	Workload  string            `json:"workload,omitempty"` // "Deployment web": see WorkloadOf
	Labels    map[string]string `json:"labels,omitempty"`
	Node      string            `json:"node,omitempty"`
}

// String is the pod, else the address.
func (p Peer) String() string {
	if p.Pod != "" {
		return p.Namespace + "/" + p.Pod
	}
	return p.Address.String()
}

// WorkloadOf tells a pod's workload, "Deployment web", by the labels that its controller gives it;
// empty = no label tells.
func WorkloadOf(pod string, labels map[string]string) string {
	cut := func(kind, name, suffix string) string {
		if base, ok := strings.CutSuffix(name, suffix); ok && suffix != "" {
			return kind + " " + base
		}
		return ""
	}
	parent := pod[:max(strings.LastIndexByte(pod, '-'), 0)]
	switch {
	case labels["pod-template-hash"] != "":
		return cut("Deployment", parent, "-"+labels["pod-template-hash"])
	case labels["statefulset.kubernetes.io/pod-name"] == pod && parent != "":
		return "StatefulSet " + parent
	case labels["batch.kubernetes.io/job-name"] != "":
		return "Job " + labels["batch.kubernetes.io/job-name"]
	case labels["controller-revision-hash"] != "" && parent != "":
		return "DaemonSet " + parent
	}
	return ""
}

// String is the line for people.
func (f *Flow) String() string {
	port := f.Protocol
	switch {
	case f.ICMP != "":
		port += ":" + f.ICMP
	case f.Destination.Port != 0:
		port += ":" + strconv.Itoa(int(f.Destination.Port))
	}
	b := fmt.Sprintf("%s %s %s → %s %s %s", f.End.Format("15:04:05"), f.Node, f.Source, f.Destination, port, strings.ToUpper(f.Verdict))
	if f.Rule != nil {
		b += " by " + f.Rule.String()
	}
	if f.Egress != nil && f.Egress.Domain != "" {
		b += " for " + f.Egress.Domain
	}
	if f.Egress != nil && f.Egress.Name != "" && f.Egress.Name != f.Egress.Domain {
		b += " asked as " + f.Egress.Name
	}
	if f.Reason != "" {
		b += " " + f.Reason
	}
	if f.Service != "" {
		b += " service " + f.Service
	}
	return b
}

// Filter says which records somebody wants; the zero value wants all.
type Filter struct {
	Since  time.Time // those whose End is later
	Until  time.Time // those whose End is not later; zero = no bound
	Denied bool      // what was denied or dropped
	// From and To are about the ends: an address, a network, "namespace", "namespace/name" of a pod
	// or a workload.
	From, To string
	// Namespaces are those of which one end at least is a pod; empty = all, and other ends, too.
	Namespaces []string
	Policy     string // whose rule decided at an end: "name" or "namespace/name"
}

// Query is the filter as parameters of a question.
func (f Filter) Query() url.Values {
	q := url.Values{"from": {f.From}, "to": {f.To}, "policy": {f.Policy}, "denied": {strconv.FormatBool(f.Denied)}}
	if len(f.Namespaces) > 0 {
		q.Set("namespaces", strings.Join(f.Namespaces, ","))
	}
	for name, t := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return q
}

// ParseQuery reads what Query wrote.
func ParseQuery(q url.Values) (f Filter, err error) {
	f = Filter{From: q.Get("from"), To: q.Get("to"), Policy: q.Get("policy")}
	if v := q.Get("namespaces"); v != "" {
		f.Namespaces = strings.Split(v, ",")
	}
	for name, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if v := q.Get(name); v != "" {
			if *to, err = time.Parse(time.RFC3339Nano, v); err != nil {
				return f, fmt.Errorf("%s %q: no time of RFC 3339", name, v)
			}
		}
	}
	if v := q.Get("denied"); v != "" {
		if f.Denied, err = strconv.ParseBool(v); err != nil {
			return f, fmt.Errorf("denied %q: true or false", v)
		}
	}
	return f, f.Check()
}

// Check says what is wrong with a filter.
func (f Filter) Check() error {
	for _, of := range []string{f.From, f.To} {
		if strings.Count(of, "/") > 1 {
			return fmt.Errorf("%q: an address, a network, a namespace, or namespace/name", of)
		}
	}
	return nil
}

// Wants: is the record what the filter is about?
func (f Filter) Wants(r *Flow) bool {
	return r.End.After(f.Since) && (f.Until.IsZero() || !r.End.After(f.Until)) && (!f.Denied || r.Verdict != Allowed) && IsOf(f.From, r.Source) && IsOf(f.To, r.Destination) && f.isWithin(r) &&
		(f.Policy == "" || Decides(f.Policy, r.Egress) || Decides(f.Policy, r.Ingress))
}

func (f Filter) isWithin(r *Flow) bool {
	is := func(p *Peer) bool { return p.Pod != "" && slices.Contains(f.Namespaces, p.Namespace) }
	return len(f.Namespaces) == 0 || is(&r.Source) || is(&r.Destination)
}

// IsOf: is the end what Filter.From or To names?
func IsOf(of string, p Peer) bool {
	if of == "" {
		return true
	}
	if a, err := netip.ParseAddr(of); err == nil {
		return p.Address == a
	}
	if n, err := netip.ParsePrefix(of); err == nil {
		return n.Contains(p.Address)
	}
	namespace, name, named := strings.Cut(of, "/")
	if p.Pod == "" || p.Namespace != namespace {
		return false
	}
	_, workload, _ := strings.Cut(p.Workload, " ")
	return !named || p.Pod == name || workload == name
}

// Decides: has a rule of the policy decided at the end, or would one have where it is staged?
func Decides(policy string, e *events.End) bool {
	if e == nil {
		return false
	}
	is := func(r *events.Rule) bool {
		return r != nil && (r.Name == policy || strings.HasSuffix(r.Name, "/"+policy))
	}
	return is(e.Rule) || e.Staged != nil && is(e.Staged.Rule)
}
