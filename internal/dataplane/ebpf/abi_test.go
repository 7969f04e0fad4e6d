package ebpf

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

// The numbers that Go repeats are those of the C header.
func TestNumbersAreThoseOfTheHeader(t *testing.T) {
	src, err := os.ReadFile("../../../bpf/abi.h")
	if err != nil {
		t.Fatal(err)
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
		"WEIR_ABI":          abiNumber,
		"ADDR_NAT_OUTGOING": addrNATOutgoing, "ADDR_SAME_LINK": addrSameLink, "ADDR_TUNNEL": addrTunnel, "ADDR_PRIMARY": addrPrimary,
		"ADDR_HOST": int(nodestate.AddrHost), "ADDR_ENDPOINT": int(nodestate.AddrEndpoint), "ADDR_NODE": int(nodestate.AddrNode), "ADDR_POD": int(nodestate.AddrPod),
		"ROUTE_POOL": routePool, "ROUTE_REMOTE": routeRemote, "ROUTE_LOCAL": routeLocal, "ROUTE_TUNNEL": routeTunnel, "ROUTE_SAME_LINK": routeSameLink,
		"SVC_LOCAL_FRONTEND": svcLocalFrontend, "SVC_EXTERNAL": svcExternal, "SVC_LOCAL": svcLocal, "LIVE_ALL": liveAll, "LIVE_LOCAL": liveLocal,
		"SVC_RESTRICTED": svcRestricted, "SVC_HOST_BACKEND": svcHostBackend, "SOCK_ASKED": sockAsked, "SET_PORTS": setPorts, "SET_HOST_NAT": setHostNAT, "ADDR_NODE_PORTS": addrNodePorts, "ADDR_KEEP_SOURCE": addrKeepSource,
		"SLOT_LOCAL": slotLocal, "SVC_MAGLEV": svcMaglev, "SVC_MODE_TUNNEL": svcModeTunnel, "SVC_MODE_DSR": svcModeDSR,
		"SET_DSR": setDSR, "SET_CHANGING": setChanging, "SET_CTLB_TCP": setCTLBTCP, "SET_CTLB_UDP": setCTLBUDP,
		"TIMEOUT_TCP_SYN": timeoutTCPSyn, "TIMEOUT_TCP_EST": timeoutTCPEst, "TIMEOUT_TCP_CLOSING": timeoutTCPClosing,
		"TIMEOUT_UDP": timeoutUDP, "TIMEOUT_ICMP": timeoutICMP, "TIMEOUT_OTHER": timeoutOther,
		"TIMEOUT_DSR_TRIES": timeoutDSRTries, "TIMEOUT_DSR_RETRY": timeoutDSRRetry, "TIMEOUT_TCP_FINS": timeoutTCPFins, "COUNT_DSR_FALLEN": countDSRFallen,
		"POLICY_TCP": int(nodestate.ProtoBitTCP), "POLICY_ALLOW": policyAllow, "POLICY_LOG": policyLog, "POLICY_UNDECIDED": policyUndecided, "SET_UNTRACKED": setUntracked, "COUNT_UNTRACKED": countUntracked,
		"ADDR_STAGED": addrStaged, "SET_EVENTS": setEvents, "SET_HAND_OVER": setHandOver, "SET_APART": setApart, "MARK_MASK": markMask, "MARK_DONE": markDone, "MARK_OWN": markOwn, "MARK_SEEN": markSeen, "SET_MARKS": setMarks,
		"SET_VXLAN_FROM_PODS": setVXLANFromPods, "SET_IPIP_FROM_PODS": setIPIPFromPods, "SET_RPF_STRICT": setRPFStrict,
		"EVENT_ALLOWED": eventAllowed, "EVENT_LOG": eventLog, "EVENT_AGAIN": eventAgain, "EVENT_EGRESS": eventEgress, "EVENT_INGRESS": eventIngress,
		"EVENT_HOST_IN": eventHostIn, "EVENT_HOST_OUT": eventHostOut, "SET_HOSTS": setHosts, "SET_TO_HOST_DROP": setToHostDrop, "SET_TO_HOST_RETURN": setToHostReturn,
		"HOST_INGRESS": hostIngress, "HOST_EGRESS": hostEgress, "HOST_FORWARD_INGRESS": hostForwardIngress, "HOST_FORWARD_EGRESS": hostForwardEgress,
		"HOST_PRE_DNAT": hostPreDNAT, "HOST_UNTRACKED_INGRESS": hostUntrackedIngress, "HOST_UNTRACKED_EGRESS": hostUntrackedEgress,
		"STAGED_EGRESS": stagedEgress, "STAGED_EGRESS_DENIED": stagedEgressDenied, "STAGED_INGRESS": stagedIngress, "STAGED_INGRESS_DENIED": stagedIngressDenied,
		"STAGED_HOST_IN": stagedHostIn, "STAGED_HOST_IN_DENIED": stagedHostInDenied, "STAGED_HOST_OUT": stagedHostOut, "STAGED_HOST_OUT_DENIED": stagedHostOutDenied, "HOST_STAGED": hostStaged,
		"UNANSWERED_SHIFT":  unansweredShift,
		"COUNT_EVENTS_LOST": countEventsLost, "COUNT_EVENTS_LIMITED": countEventsLimited,
	} {
		if want, ok := header[name]; !ok || want != got {
			t.Errorf("%s is %d here and %d (found %t) in abi.h", name, got, want, ok)
		}
	}
	if !strings.Contains(string(src), "enum svc_scope { SCOPE_ALL = "+strconv.Itoa(scopeAll)+", SCOPE_LOCAL = "+strconv.Itoa(scopeLocal)+" }") {
		t.Error("enum svc_scope differs")
	}
}
