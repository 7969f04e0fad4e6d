// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

func spec(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	got := New("n1", nil, nil).Resolve()
	if !reflect.DeepEqual(got.Effective, Default()) {
		t.Errorf("nothing configured gives %+v, want %+v", got.Effective, Default())
	}
	if len(got.Problems)+len(got.Unsupported) > 0 {
		t.Errorf("nothing configured is complained about: %v %v", got.Problems, got.Unsupported)
	}
}

// Writing a field's default must be accepted without a word, and change nothing.
func TestEveryDefaultIsAccepted(t *testing.T) {
	for _, f := range fields {
		if f.def == "" || f.name == "bpfEnabled" {
			continue
		}
		r := New("n1", []string{"FELIX_" + strings.ToUpper(f.env) + "=" + f.def}, nil)
		got := r.Resolve()
		if !reflect.DeepEqual(got.Effective, Default()) || len(got.Problems) > 0 || len(got.Unsupported) > 0 {
			t.Errorf("%s=%s: %+v", f.env, f.def, got)
		}
	}
}

func TestPrecedence(t *testing.T) {
	r := New("n1", nil, nil)
	step := func(what string, wantDSR bool, wantPort uint16) {
		t.Helper()
		got := r.Resolve()
		if got.Settings.DSR != wantDSR || got.Settings.VXLANPort != wantPort || len(got.Problems) > 0 {
			t.Errorf("%s: DSR %v port %d, want %v %d; problems %v", what, got.Settings.DSR, got.Settings.VXLANPort, wantDSR, wantPort, got.Problems)
		}
	}
	r.Set("default", spec(t, `{"bpfExternalServiceMode":"DSR","vxlanPort":4790}`))
	step("default", true, 4790)
	r.Set("node.n1", spec(t, `{"bpfExternalServiceMode":"Tunnel"}`))
	step("node over default", false, 4790)
	if r.Set("node.n2", spec(t, `{"bpfExternalServiceMode":"DSR"}`)) {
		t.Error("the configuration of another node was taken")
	}
	step("another node's", false, 4790)
	r.Set("node.n1", nil)
	step("node's gone", true, 4790)
	r.Set("default", nil)
	step("all gone", false, 4789)

	env := New("n1", []string{"felix_bpfexternalservicemode=dsr", "FELIX_BPFDSROptoutCIDRs=10.0.0.0/8, 172.16.0.1", "PATH=/bin"}, nil)
	env.Set("node.n1", spec(t, `{"bpfExternalServiceMode":"Tunnel"}`))
	if got := env.Resolve(); !got.Settings.DSR || len(got.Settings.DSROptOut) != 2 {
		t.Error("the environment does not win over the node's resource")
	}
}

func TestValues(t *testing.T) {
	d := model.DefaultSettings()
	for _, c := range []struct {
		spec  string
		check func(Effective) bool
	}{
		{`{"bpfConnectTimeLoadBalancing":"Disabled"}`, func(e Effective) bool { return e.Settings.ConnectTime == model.ConnectTimeDisabled }},
		{`{"bpfConnectTimeLoadBalancingEnabled":true}`, func(e Effective) bool { return e.Settings.ConnectTime == model.ConnectTimeEnabled }},
		{`{"bpfConnectTimeLoadBalancingEnabled":true,"bpfConnectTimeLoadBalancing":"TCP"}`, func(e Effective) bool { return e.Settings.ConnectTime == model.ConnectTimeTCP }},
		{`{"bpfExternalServiceMode":"dsr"}`, func(e Effective) bool { return e.Settings.DSR }},
		{`{"vxlanVNI":16777215,"vxlanMTU":1400}`, func(e Effective) bool { return e.Settings.VXLANVNI == 16777215 && e.Settings.VXLANMTU == 1400 }},
		{`{"bpfPSNATPorts":"30000:30100"}`, func(e Effective) bool {
			return e.Settings.SNATPortFirst == 30000 && e.Settings.SNATPortLast == 30100
		}},
		{`{"ipv6Support":false}`, func(e Effective) bool { return !e.Settings.IPv6Support }},
		{`{"natOutgoingExclusions":"IPPoolsAndHostIPs"}`, func(e Effective) bool { return e.Settings.NATExcludeHostIPs }},
		{`{"bpfConntrackTimeouts":{"tcpFinsSeen":"9s","tcpResetSeen":"8s","creationGracePeriod":"10s"}}`, func(e Effective) bool {
			return e.Settings.Timeouts.TCPFins == 9*time.Second && e.Settings.Timeouts.TCPReset == 8*time.Second
		}},
		{`{"bpfConntrackTimeouts":{"tcpSynSent":"5s","tcpFinsSeen":"Auto","udpTimeout":"Auto"}}`, func(e Effective) bool {
			return e.Settings.Timeouts.TCPSynSent == 5*time.Second && e.Settings.Timeouts.UDP == d.Timeouts.UDP
		}},
		{`{"bpfDSROptoutCIDRs":["172.16.9.9/12","10.1.2.3","10.1.2.3/32","fd00::/8"]}`, func(e Effective) bool {
			return reflect.DeepEqual(e.Settings.DSROptOut, []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"),
				netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("fd00::/8")})
		}},
		{`{"healthEnabled":true,"healthPort":9199}`, func(e Effective) bool { return e.Health.Enabled && e.Health.Port == 9199 }},
		{`{"prometheusMetricsEnabled":true,"prometheusGoMetricsEnabled":false}`, func(e Effective) bool { return e.Metrics.Enabled && !e.Metrics.Go }},
		{`{"bpfDataIfacePattern":"^up","interfacePrefix":"pod","bpfMapSizeConntrack":1024}`, func(e Effective) bool {
			return e.Settings.DataIfaces == "^up" && e.Settings.InterfacePrefix == "pod" && e.Settings.MaxFlows == 1024
		}},
	} {
		r := New("n1", nil, nil)
		r.Set("default", spec(t, c.spec))
		if got := r.Resolve(); !c.check(got.Effective) || len(got.Problems) > 0 || len(got.Unsupported) > 0 {
			t.Errorf("%s: %+v", c.spec, got)
		}
	}
}

func TestInvalidKeepsTheLastGoodValue(t *testing.T) {
	for _, c := range []struct{ field, good, bad, wantIn string }{
		{"vxlanPort", `4790`, `70000`, "1..65535"},
		{"vxlanPort", `4790`, `0`, "1..65535"},
		{"vxlanVNI", `5`, `16777216`, "1..16777215"},
		{"vxlanMTU", `1400`, `-1`, "576..65485 or 0"},
		{"bpfPSNATPorts", `"20000:20100"`, `"80:20000"`, "1024..65535"},
		{"bpfPSNATPorts", `"20000:20100"`, `"30000:20000"`, "first:last"},
		{"bpfExternalServiceMode", `"DSR"`, `"direct"`, "Tunnel, DSR"},
		{"bpfDSROptoutCIDRs", `["10.0.0.0/8"]`, `["10.0.0.0/8","10/8"]`, `"10/8"`},
		{"bpfDataIfacePattern", `"^up"`, `"("`, "regular expression"},
		{"interfacePrefix", `"pod"`, `"a/b"`, "one to four"},
		{"bpfMapSizeConntrack", `2048`, `"many"`, "1024.."},
		{"bpfConntrackTimeouts", `{"udpTimeout":"90s"}`, `{"udpTimeout":"0s"}`, "1s"},
		{"bpfConntrackTimeouts", `{"udpTimeout":"90s"}`, `{"nonsense":"9s"}`, "nonsense"},
		{"healthPort", `9199`, `99999`, "1..65535"},
	} {
		r := New("n1", nil, nil)
		r.Set("default", spec(t, `{"`+c.field+`":`+c.good+`}`))
		want := r.Resolve()
		if len(want.Problems) > 0 {
			t.Fatalf("%s = %s: %v", c.field, c.good, want.Problems)
		}
		r.Set("default", spec(t, `{"`+c.field+`":`+c.bad+`}`))
		for _, when := range []struct {
			what string
			r    *Resolver
		}{{"now", r}, {"after a restart", restarted(t, r, `{"`+c.field+`":`+c.bad+`}`)}} {
			got := when.r.Resolve()
			if !reflect.DeepEqual(got.Effective, want.Effective) {
				t.Errorf("%s = %s %s: the last good value is not in force", c.field, c.bad, when.what)
			}
			if len(got.Problems) != 1 || got.Problems[0].Object != "FelixConfiguration default" || got.Problems[0].Field != "spec."+c.field ||
				!strings.Contains(got.Problems[0].String(), c.wantIn) || got.Problems[0].Action == "" {
				t.Errorf("%s = %s %s: problems %v", c.field, c.bad, when.what, got.Problems)
			}
		}
		r.Set("default", nil)
		if got := r.Resolve(); !reflect.DeepEqual(got.Effective, Default()) || len(got.Problems) > 0 {
			t.Errorf("%s removed: %+v", c.field, got)
		}
	}
}

func restarted(t *testing.T, r *Resolver, text string) *Resolver {
	next := New("n1", nil, r.LastGood())
	next.Resolve() // before the cluster was read, as an agent that starts does
	next.Set("default", spec(t, text))
	return next
}

func TestInvalidWithoutAnEarlierValueGivesTheDefault(t *testing.T) {
	got := New("n1", []string{"FELIX_VXLANPORT=x"}, nil)
	res := got.Resolve()
	if res.Settings.VXLANPort != 4789 || len(res.Problems) != 1 || res.Problems[0].Field != "FELIX_VXLANPORT" {
		t.Errorf("%+v", res)
	}
}

func TestUnsupportedIsSaid(t *testing.T) {
	r := New("n1", []string{"FELIX_WIREGUARDTHREADINGENABLED=true", "FELIX_NOSUCHTHING=1"}, nil)
	r.Set("default", spec(t, `{"bpfLogLevel":"Debug","vxlanEnabled":true,"routeRefreshInterval":"90s","typo":3,"bpfConntrackTimeouts":{"creationGracePeriod":"20s"}}`))
	got := strings.Join(r.Resolve().Unsupported, "\n")
	for _, want := range []string{"FELIX_WIREGUARDTHREADINGENABLED", "FELIX_NOSUCHTHING", "spec.bpfLogLevel = Debug", "spec.vxlanEnabled", "spec.typo", "CreationGracePeriod = 20s"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not mentioned in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "routeRefreshInterval") {
		t.Errorf("a default is complained about:\n%s", got)
	}
}

func TestDataPlane(t *testing.T) {
	for text, nftables := range map[string]bool{`{}`: false, `{"bpfEnabled":true}`: false, `{"bpfEnabled":false}`: true} {
		r := New("n1", nil, nil)
		r.Set("default", spec(t, text))
		if got := r.Resolve(); got.Effective.NFTables != nftables || len(got.Unsupported)+len(got.Problems) > 0 {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

func TestServiceSettings(t *testing.T) {
	r := New("n1", []string{"FELIX_NODEPORTADDRESSES=10.1.2.3/8, fd00::/8", "FELIX_bpfHostNetworkedNATWithoutCTLB=disabled"}, nil)
	r.Set("default", spec(t, `{"bpfExcludeCIDRsFromNAT":["169.254.20.10","10.96.0.10/32"]}`))
	got := r.Resolve()
	cidr := netip.MustParsePrefix
	if want := []netip.Prefix{netip.MustParsePrefix("10.96.0.10/32"), netip.MustParsePrefix("169.254.20.10/32")}; !slices.Equal(got.Settings.ExcludeFromNAT, want) {
		t.Errorf("excluded %v, want %v", got.Settings.ExcludeFromNAT, want)
	}
	if n := got.Settings.NodePorts; n.Primary || !slices.Equal(n.CIDRs, []netip.Prefix{cidr("10.0.0.0/8"), cidr("fd00::/8")}) {
		t.Errorf("node ports at %+v", n)
	}
	if got.Settings.HostNAT || len(got.Problems)+len(got.Unsupported) > 0 {
		t.Errorf("%+v", got)
	}
	if n := New("n1", []string{"FELIX_NodePortAddresses=Primary"}, nil).Resolve().Settings.NodePorts; !n.Primary || len(n.CIDRs) > 0 {
		t.Errorf("primary: %+v", n)
	}
	for _, bad := range []string{"10.0.0.0/33", "primary,10.0.0.0/8", "::ffff:10.0.0.0/104", "[\"x\"]", "[1]", "fe80::1%eth0"} {
		if got := New("n1", []string{"FELIX_NodePortAddresses=" + bad}, nil).Resolve(); len(got.Problems) != 1 {
			t.Errorf("%q: problems %v", bad, got.Problems)
		}
	}
}

// The kinds of aggregation that sum more than source ports do what that kind does, and it is said.
func TestFlowAggregation(t *testing.T) {
	for text, want := range map[string]struct{ kind, unsupported, problems int }{"0": {}, "1": {kind: 1}, "2": {1, 1, 0}, "3": {1, 1, 0}, "4": {0, 0, 1}, "-1": {0, 0, 1}, "1.5": {0, 0, 1}} {
		r := New("n1", nil, nil)
		r.Set("default", spec(t, `{"flowLogsFileAggregationKindForAllowed":`+text+`,"flowLogsFileAggregationKindForDenied":1}`))
		got := r.Resolve()
		if got.FlowAggregation != want.kind || len(got.Unsupported) != want.unsupported || len(got.Problems) != want.problems {
			t.Errorf("%s: kind %d, unsupported %v, problems %v", text, got.FlowAggregation, got.Unsupported, got.Problems)
		}
	}
}

// Maps are made before any configuration is read, so their sizes are those of before the restart.
func TestAtStartWhatWasInForceCounts(t *testing.T) {
	before := New("n1", nil, nil)
	before.Set("default", spec(t, `{"bpfMapSizeNATFrontend":262144,"bpfMapSizeNATBackend":1048576,"vxlanPort":70000}`))
	before.Resolve()
	if got := before.AtStart().MapSizes; got.NATFrontend != 262144 {
		t.Errorf("what is configured does not count: %+v", got)
	}
	r := New("n1", []string{"FELIX_BPFMAPSIZENATBACKEND=500000"}, before.LastGood())
	if r.Resolve().MapSizes.NATFrontend != 65536 {
		t.Error("a value of before the restart is in force without being configured")
	}
	got := r.AtStart()
	if got.MapSizes.NATFrontend != 262144 || got.MapSizes.NATBackend != 500000 || got.Settings.VXLANPort != 4789 {
		t.Errorf("%+v", got)
	}
	r.Set("default", spec(t, `{}`))
	r.Resolve()
	if got := r.AtStart().MapSizes.NATFrontend; got != 65536 {
		t.Errorf("%d after the field was removed", got)
	}
}

// Auto is what the kernel's connection tracking has, where it has something: of TCPFinsSeen also
// when nothing is said.
func TestTimeoutsOfLinux(t *testing.T) {
	kernel := map[string]int{"nf_conntrack_tcp_timeout_time_wait": 120, "nf_conntrack_tcp_timeout_syn_sent": 0, "nf_conntrack_icmp_timeout": 30}
	for _, c := range []struct {
		spec string
		want model.Timeouts
	}{
		{`{}`, model.Timeouts{TCPFins: 120 * time.Second, ICMP: 5 * time.Second, TCPSynSent: 20 * time.Second, Generic: 10 * time.Minute}},
		{`{"bpfConntrackTimeouts":{"tcpFinsSeen":"Auto","icmpTimeout":"Auto","tcpSynSent":"Auto","genericTimeout":"Auto"}}`,
			model.Timeouts{TCPFins: 120 * time.Second, ICMP: 30 * time.Second, TCPSynSent: 20 * time.Second, Generic: 10 * time.Minute}},
		{`{"bpfConntrackTimeouts":{"tcpFinsSeen":"7s"}}`, model.Timeouts{TCPFins: 7 * time.Second, ICMP: 5 * time.Second, TCPSynSent: 20 * time.Second, Generic: 10 * time.Minute}},
	} {
		r := New("n1", nil, nil)
		r.ReadLinux(func(path ...string) (int, error) {
			if v, ok := kernel[path[2]]; ok {
				return v, nil
			}
			return 0, os.ErrNotExist
		})
		r.Set("default", spec(t, c.spec))
		got := r.Resolve()
		of := got.Settings.Timeouts
		if of.TCPFins != c.want.TCPFins || of.ICMP != c.want.ICMP || of.TCPSynSent != c.want.TCPSynSent || of.Generic != c.want.Generic ||
			len(got.Problems)+len(got.Unsupported) > 0 {
			t.Errorf("%s: %+v, %v %v", c.spec, of, got.Problems, got.Unsupported)
		}
	}
}
