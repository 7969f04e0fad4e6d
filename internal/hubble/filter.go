// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weir-net/weir/internal/hubble/api/flow"
)

// test says whether a Flow is what one field of a FlowFilter is about.
type test func(*flow.Flow) bool

// mostFilters bounds the filters of a request, and mostValues the values of a field.
const (
	mostFilters = 256
	mostValues  = 1024
)

// filter is what a request wants: what one of its whitelist matches, or anything where that is
// empty, and none of its blacklist does. All fields of a FlowFilter have to match, and one of the
// values of each.
type filter struct{ white, black [][]test }

func newFilter(white, black []*flow.FlowFilter) (f filter, err error) {
	if len(white)+len(black) > mostFilters {
		return f, fmt.Errorf("%d filters: %d are allowed", len(white)+len(black), mostFilters)
	}
	for _, one := range white {
		tests, err := testsOf(one)
		if err != nil {
			return f, err
		}
		f.white = append(f.white, tests)
	}
	for _, one := range black {
		tests, err := testsOf(one)
		if err != nil {
			return f, err
		}
		f.black = append(f.black, tests)
	}
	return f, nil
}

func (f filter) wants(r *flow.Flow) bool {
	matches := func(tests []test) bool {
		return !slices.ContainsFunc(tests, func(t test) bool { return !t(r) })
	}
	return (len(f.white) == 0 || slices.ContainsFunc(f.white, matches)) && !slices.ContainsFunc(f.black, matches)
}

// fields are those of a FlowFilter that are known, by their names in flow.proto.
var fields = map[protoreflect.Name]func(*flow.FlowFilter) (test, error){
	"source_pod": func(f *flow.FlowFilter) (test, error) {
		return named(f.GetSourcePod(), func(r *flow.Flow) (string, string) { return r.GetSource().GetNamespace(), r.GetSource().GetPodName() })
	},
	"destination_pod": func(f *flow.FlowFilter) (test, error) {
		return named(f.GetDestinationPod(), func(r *flow.Flow) (string, string) {
			return r.GetDestination().GetNamespace(), r.GetDestination().GetPodName()
		})
	},
	"source_service": func(f *flow.FlowFilter) (test, error) {
		return named(f.GetSourceService(), func(r *flow.Flow) (string, string) {
			return r.GetSourceService().GetNamespace(), r.GetSourceService().GetName()
		})
	},
	"destination_service": func(f *flow.FlowFilter) (test, error) {
		return named(f.GetDestinationService(), func(r *flow.Flow) (string, string) {
			return r.GetDestinationService().GetNamespace(), r.GetDestinationService().GetName()
		})
	},
	"source_ip":      func(f *flow.FlowFilter) (test, error) { return within(f.GetSourceIp(), source) },
	"destination_ip": func(f *flow.FlowFilter) (test, error) { return within(f.GetDestinationIp(), destination) },
	"source_label":   func(f *flow.FlowFilter) (test, error) { return labelled(f.GetSourceLabel(), (*flow.Flow).GetSource) },
	"destination_label": func(f *flow.FlowFilter) (test, error) {
		return labelled(f.GetDestinationLabel(), (*flow.Flow).GetDestination)
	},
	"source_workload": func(f *flow.FlowFilter) (test, error) {
		return runs(f.GetSourceWorkload(), (*flow.Flow).GetSource), nil
	},
	"destination_workload": func(f *flow.FlowFilter) (test, error) {
		return runs(f.GetDestinationWorkload(), (*flow.Flow).GetDestination), nil
	},
	"source_identity": func(f *flow.FlowFilter) (test, error) {
		return oneOf(f.GetSourceIdentity(), func(r *flow.Flow) uint32 { return r.GetSource().GetIdentity() }), nil
	},
	"destination_identity": func(f *flow.FlowFilter) (test, error) {
		return oneOf(f.GetDestinationIdentity(), func(r *flow.Flow) uint32 { return r.GetDestination().GetIdentity() }), nil
	},
	"source_port":      func(f *flow.FlowFilter) (test, error) { return ports(f.GetSourcePort(), false) },
	"destination_port": func(f *flow.FlowFilter) (test, error) { return ports(f.GetDestinationPort(), true) },
	"verdict":          func(f *flow.FlowFilter) (test, error) { return oneOf(f.GetVerdict(), (*flow.Flow).GetVerdict), nil },
	"drop_reason_desc": func(f *flow.FlowFilter) (test, error) {
		return oneOf(f.GetDropReasonDesc(), (*flow.Flow).GetDropReasonDesc), nil
	},
	"traffic_direction": func(f *flow.FlowFilter) (test, error) {
		return oneOf(f.GetTrafficDirection(), (*flow.Flow).GetTrafficDirection), nil
	},
	"ip_version": func(f *flow.FlowFilter) (test, error) {
		return oneOf(f.GetIpVersion(), func(r *flow.Flow) flow.IPVersion { return r.GetIP().GetIpVersion() }), nil
	},
	"reply": func(f *flow.FlowFilter) (test, error) {
		return oneOf(f.GetReply(), func(r *flow.Flow) bool { return r.GetIsReply().GetValue() }), nil
	},
	"event_type": func(f *flow.FlowFilter) (test, error) { return ofType(f.GetEventType()), nil },
	"protocol":   func(f *flow.FlowFilter) (test, error) { return protocols(f.GetProtocol()) },
	"tcp_flags":  func(f *flow.FlowFilter) (test, error) { return flags(f.GetTcpFlags()), nil },
	"node_name":  func(f *flow.FlowFilter) (test, error) { return nodes(f.GetNodeName()) },
}

// testsOf are those of one filter. A field that is set and not known is an error: without it a
// question would get an answer to another one.
func testsOf(f *flow.FlowFilter) (out []test, err error) {
	f.ProtoReflect().Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		make, known := fields[d.Name()]
		switch {
		case !known:
			err = fmt.Errorf("filter %s: Weir's records do not have it", d.Name())
		case d.IsList() && v.List().Len() > mostValues:
			err = fmt.Errorf("filter %s: %d values, %d are allowed", d.Name(), v.List().Len(), mostValues)
		default:
			var t test
			if t, err = make(f); err != nil {
				err = fmt.Errorf("filter %s: %w", d.Name(), err)
			}
			out = append(out, t)
		}
		return err == nil
	})
	if unknown := f.ProtoReflect().GetUnknown(); err == nil && len(unknown) > 0 {
		err = fmt.Errorf("a filter that this version of the API does not have")
	}
	return out, err
}

func source(r *flow.Flow) string      { return r.GetIP().GetSource() }
func destination(r *flow.Flow) string { return r.GetIP().GetDestination() }

func oneOf[T comparable](values []T, of func(*flow.Flow) T) test {
	return func(r *flow.Flow) bool { return slices.Contains(values, of(r)) }
}

// named matches "namespace/prefix", "namespace/", "/prefix" in any namespace, and "prefix" in
// namespace default.
func named(values []string, of func(*flow.Flow) (namespace, name string)) (test, error) {
	type want struct{ namespace, prefix string }
	var wants []want
	for _, v := range values {
		namespace, prefix, full := strings.Cut(v, "/")
		switch {
		case v == "":
			return nil, fmt.Errorf("an empty name")
		case !full:
			namespace, prefix = "default", v
		}
		wants = append(wants, want{namespace, prefix})
	}
	return func(r *flow.Flow) bool {
		namespace, name := of(r)
		return name != "" && slices.ContainsFunc(wants, func(w want) bool {
			return (w.namespace == "" || w.namespace == namespace) && strings.HasPrefix(name, w.prefix)
		})
	}, nil
}

// within matches addresses and networks.
func within(values []string, of func(*flow.Flow) string) (test, error) {
	var nets []netip.Prefix
	for _, v := range values {
		if a, err := netip.ParseAddr(v); err == nil {
			nets = append(nets, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		n, err := netip.ParsePrefix(v)
		if err != nil {
			return nil, fmt.Errorf("%q: no address and no network", v)
		}
		nets = append(nets, n)
	}
	return func(r *flow.Flow) bool {
		a, err := netip.ParseAddr(of(r))
		return err == nil && slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(a) })
	}, nil
}

// Labels come from sources, and selectors may name these, with a colon that no selector of
// Kubernetes has. All of Weir's are k8s, or reserved.
var (
	selectorSources = strings.NewReplacer("k8s:", "", "any:", "", "reserved:", "reserved.")
	labelSources    = strings.NewReplacer("k8s:", "", "reserved:", "reserved.")
)

// labelled matches selectors of Kubernetes' language.
func labelled(values []string, of func(*flow.Flow) *flow.Endpoint) (test, error) {
	var wants []labels.Selector
	for _, v := range values {
		s, err := labels.Parse(selectorSources.Replace(v))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", v, err)
		}
		wants = append(wants, s)
	}
	return func(r *flow.Flow) bool {
		has := labels.Set{}
		for _, l := range of(r).GetLabels() {
			key, value, _ := strings.Cut(labelSources.Replace(l), "=")
			has[key] = value
		}
		return slices.ContainsFunc(wants, func(s labels.Selector) bool { return s.Matches(has) })
	}, nil
}

// runs matches workloads by kind, name or both.
func runs(values []*flow.Workload, of func(*flow.Flow) *flow.Endpoint) test {
	return func(r *flow.Flow) bool {
		return slices.ContainsFunc(of(r).GetWorkloads(), func(w *flow.Workload) bool {
			return slices.ContainsFunc(values, func(v *flow.Workload) bool {
				return (v.GetName() == "" || v.GetName() == w.GetName()) && (v.GetKind() == "" || v.GetKind() == w.GetKind())
			})
		})
	}
}

// ports matches numbers, and ranges such as 8000-8080.
func ports(values []string, ofDestination bool) (test, error) {
	var wants [][2]uint32
	for _, v := range values {
		from, to, ranged := strings.Cut(v, "-")
		if !ranged {
			to = from
		}
		low, err := strconv.ParseUint(from, 10, 16)
		high, err2 := strconv.ParseUint(to, 10, 16)
		if err != nil || err2 != nil || low > high {
			return nil, fmt.Errorf("%q: no port and no range of ports", v)
		}
		wants = append(wants, [2]uint32{uint32(low), uint32(high)})
	}
	return func(r *flow.Flow) bool {
		var l interface {
			GetSourcePort() uint32
			GetDestinationPort() uint32
		}
		switch l4 := r.GetL4(); {
		case l4.GetTCP() != nil:
			l = l4.GetTCP()
		case l4.GetUDP() != nil:
			l = l4.GetUDP()
		case l4.GetSCTP() != nil:
			l = l4.GetSCTP()
		default:
			return false
		}
		port := l.GetSourcePort()
		if ofDestination {
			port = l.GetDestinationPort()
		}
		return slices.ContainsFunc(wants, func(w [2]uint32) bool { return w[0] <= port && port <= w[1] })
	}, nil
}

func ofType(values []*flow.EventTypeFilter) test {
	return func(r *flow.Flow) bool {
		return slices.ContainsFunc(values, func(v *flow.EventTypeFilter) bool {
			return v.GetType() == r.GetEventType().GetType() && (!v.GetMatchSubType() || v.GetSubType() == r.GetEventType().GetSubType())
		})
	}
}

func protocols(values []string) (test, error) {
	var wants []string
	for _, v := range values {
		v = strings.ToLower(v)
		switch v {
		case "tcp", "udp", "sctp", "icmp", "icmpv4", "icmpv6":
		case "dns", "http", "kafka":
			return nil, fmt.Errorf("%q: Weir records addresses and ports, and nothing of what is said over them", v)
		default:
			return nil, fmt.Errorf("%q: no protocol that Weir records: tcp, udp, sctp, icmp, icmpv4, icmpv6", v)
		}
		wants = append(wants, v)
	}
	return func(r *flow.Flow) bool {
		var is, family string
		switch r.GetL4().GetProtocol().(type) {
		case *flow.Layer4_TCP:
			is = "tcp"
		case *flow.Layer4_UDP:
			is = "udp"
		case *flow.Layer4_SCTP:
			is = "sctp"
		case *flow.Layer4_ICMPv4:
			is, family = "icmp", "icmpv4"
		case *flow.Layer4_ICMPv6:
			is, family = "icmp", "icmpv6"
		default:
			return false
		}
		return slices.Contains(wants, is) || slices.Contains(wants, family)
	}, nil
}

// flags matches records with all flags of one of the values.
func flags(values []*flow.TCPFlags) test {
	return func(r *flow.Flow) bool {
		has := r.GetL4().GetTCP().GetFlags()
		return has != nil && slices.ContainsFunc(values, func(v *flow.TCPFlags) bool {
			other := v.GetPSH() || v.GetURG() || v.GetECE() || v.GetCWR() || v.GetNS() // not recorded
			return !other && (!v.GetSYN() || has.GetSYN()) && (!v.GetACK() || has.GetACK()) && (!v.GetFIN() || has.GetFIN()) && (!v.GetRST() || has.GetRST())
		})
	}
}

// patternOf is what a pattern of a name may be: "*" stands for any characters.
var patternOf = regexp.MustCompile(`^[-.*_0-9a-z]*$`)

// nodes matches "node", "cluster/node" and "cluster/", each with *. The cluster is "default".
func nodes(values []string) (test, error) {
	var wants []*regexp.Regexp
	for _, v := range values {
		cluster, node, full := strings.Cut(strings.ToLower(v), "/")
		if !full {
			cluster, node = "", cluster
		}
		if v == "" || !patternOf.MatchString(cluster) || !patternOf.MatchString(node) {
			return nil, fmt.Errorf("%q: no pattern of a node's name", v)
		}
		part := func(p string) string {
			if p == "" {
				p = "*"
			}
			return strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, `[^/]*`)
		}
		want, err := regexp.Compile("^" + part(cluster) + "/" + part(node) + "$")
		if err != nil {
			return nil, fmt.Errorf("%q: %w", v, err)
		}
		wants = append(wants, want)
	}
	return func(r *flow.Flow) bool {
		return slices.ContainsFunc(wants, func(w *regexp.Regexp) bool { return w.MatchString("default/" + r.GetNodeName()) })
	}, nil
}
