// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

// The numbers that Go repeats are those of the C header.
func TestNumbersAreThoseOfTheHeader(t *testing.T) {
	paths, err := filepath.Glob("../../../../bpf/abi*.h")
	if err != nil {
		t.Fatal(err)
	}
	var src []byte
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		src = append(src, text...)
	}
	header := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^(?:\s*|#define |enum \w+ \{ )([A-Z][A-Z0-9_]+) =? ?(0x[0-9a-f]+|\d+)u?\b`).FindAllStringSubmatch(string(src), -1) {
		n, err := strconv.ParseInt(m[2], 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		header[m[1]] = int(n)
	}
	for name, got := range map[string]int{
		"WEIR_ABI":          Number,
		"ADDR_NAT_OUTGOING": AddrNATOutgoing, "ADDR_SAME_LINK": AddrSameLink, "ADDR_TUNNEL": AddrTunnel, "ADDR_PRIMARY": AddrPrimary,
		"ADDR_HOST": int(nodestate.AddrHost), "ADDR_ENDPOINT": int(nodestate.AddrEndpoint), "ADDR_NODE": int(nodestate.AddrNode), "ADDR_POD": int(nodestate.AddrPod),
		"ROUTE_POOL": RoutePool, "ROUTE_REMOTE": RouteRemote, "ROUTE_LOCAL": RouteLocal, "ROUTE_TUNNEL": RouteTunnel, "ROUTE_SAME_LINK": RouteSameLink,
		"SVC_LOCAL_FRONTEND": SvcLocalFrontend, "SVC_EXTERNAL": SvcExternal, "SVC_LOCAL": SvcLocal, "LIVE_ALL": LiveAll, "LIVE_LOCAL": LiveLocal,
		"SVC_RESTRICTED": SvcRestricted, "SVC_HOST_BACKEND": SvcHostBackend, "SOCK_ASKED": SockAsked, "SET_PORTS": SetPorts, "SET_HOST_NAT": SetHostNAT, "ADDR_NODE_PORTS": AddrNodePorts, "ADDR_KEEP_SOURCE": AddrKeepSource,
		"SLOT_LOCAL": SlotLocal, "SVC_MAGLEV": SvcMaglev, "SVC_MODE_TUNNEL": SvcModeTunnel, "SVC_MODE_DSR": SvcModeDSR,
		"SET_DSR": SetDSR, "SET_CHANGING": SetChanging, "SET_CTLB_TCP": SetCTLBTCP, "SET_CTLB_UDP": SetCTLBUDP,
		"TIMEOUT_TCP_SYN": TimeoutTCPSyn, "TIMEOUT_TCP_EST": TimeoutTCPEst, "TIMEOUT_TCP_CLOSING": TimeoutTCPClosing,
		"TIMEOUT_UDP": TimeoutUDP, "TIMEOUT_ICMP": TimeoutICMP, "TIMEOUT_OTHER": TimeoutOther,
		"TIMEOUT_DSR_TRIES": TimeoutDSRTries, "TIMEOUT_DSR_RETRY": TimeoutDSRRetry, "TIMEOUT_TCP_FINS": TimeoutTCPFins, "COUNT_DSR_FALLEN": CountDSRFallen,
		"POLICY_TCP": int(nodestate.ProtoBitTCP), "POLICY_ALLOW": PolicyAllow, "POLICY_LOG": PolicyLog, "POLICY_UNDECIDED": PolicyUndecided, "SET_UNTRACKED": SetUntracked, "COUNT_UNTRACKED": CountUntracked,
		"ADDR_STAGED": AddrStaged, "SET_EVENTS": SetEvents, "SET_HAND_OVER": SetHandOver, "SET_APART": SetApart, "MARK_MASK": MarkMask, "MARK_DONE": MarkDone, "MARK_OWN": MarkOwn, "MARK_SEEN": MarkSeen, "SET_MARKS": SetMarks,
		"SET_VXLAN_FROM_PODS": SetVXLANFromPods, "SET_IPIP_FROM_PODS": SetIPIPFromPods, "SET_RPF_STRICT": SetRPFStrict,
		"EVENT_ALLOWED": EventAllowed, "EVENT_LOG": EventLog, "EVENT_AGAIN": EventAgain, "EVENT_EGRESS": EventEgress, "EVENT_INGRESS": EventIngress,
		"EVENT_HOST_IN": EventHostIn, "EVENT_HOST_OUT": EventHostOut, "SET_HOSTS": SetHosts, "SET_TO_HOST_DROP": SetToHostDrop, "SET_TO_HOST_RETURN": SetToHostReturn,
		"HOST_INGRESS": HostIngress, "HOST_EGRESS": HostEgress, "HOST_FORWARD_INGRESS": HostForwardIngress, "HOST_FORWARD_EGRESS": HostForwardEgress,
		"HOST_PRE_DNAT": HostPreDNAT, "HOST_UNTRACKED_INGRESS": HostUntrackedIngress, "HOST_UNTRACKED_EGRESS": HostUntrackedEgress,
		"STAGED_EGRESS": StagedEgress, "STAGED_EGRESS_DENIED": StagedEgressDenied, "STAGED_INGRESS": StagedIngress, "STAGED_INGRESS_DENIED": StagedIngressDenied,
		"STAGED_HOST_IN": StagedHostIn, "STAGED_HOST_IN_DENIED": StagedHostInDenied, "STAGED_HOST_OUT": StagedHostOut, "STAGED_HOST_OUT_DENIED": StagedHostOutDenied, "HOST_STAGED": HostStaged,
		"UNANSWERED_SHIFT": UnansweredShift, "TIMEOUTS": NumTimeouts,
		"ACT_PASS": ActPass, "ACT_NEIGH": ActNeigh, "ACT_TUNNEL": ActTunnel,
		"FLOW_REPLY": FlowReply, "FLOW_REWRITE": FlowRewrite, "FLOW_VIA_NODE": FlowViaNode, "FLOW_HAND_ON": FlowHandOn,
		"FLOW_FROM_HOST": FlowFromHost, "FLOW_SNAT": FlowSNAT, "FLOW_CLAMP": FlowClamp, "FROM_POD": FromPod,
		"STATE_REPLIED": StateReplied, "STATE_FIN": StateFIN, "STATE_CLOSING": StateClosing, "STATE_ANSWERED": StateAnswered, "STATE_RESET": StateReset,
		"PORT_WORDS": PortWords, "PORT_TCP_FRONTEND": PortTCPFrontend, "PORT_TCP_HOST": PortTCPHost,
		"ANSWER_PORT_UNREACHABLE": AnswerPortUnreachable, "ANSWER_TIME_EXCEEDED": AnswerTimeExceeded, "ANSWER_TOO_BIG": AnswerTooBig,
		"ANSWER_HOST_UNREACHABLE": AnswerHostUnreachable, "ANSWER_RESET": AnswerReset, "ANSWER_LIMITED": AnswerLimited, "ANSWER_FAILED": AnswerFailed,
		"COUNT_EVENTS_LOST": CountEventsLost, "COUNT_EVENTS_LIMITED": CountEventsLimited,
	} {
		if want, ok := header[name]; !ok || want != got {
			t.Errorf("%s is %d here and %d (found %t) in abi.h", name, got, want, ok)
		}
	}
	if !strings.Contains(string(src), "enum svc_scope { SCOPE_ALL = "+strconv.Itoa(ScopeAll)+", SCOPE_LOCAL = "+strconv.Itoa(ScopeLocal)+" }") {
		t.Error("enum svc_scope differs")
	}
}
