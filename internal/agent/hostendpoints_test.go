package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

func TestHostEndpointsThatJudgeNothingAreNamed(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	for name, h := range map[string]model.HostEndpoint{
		"all":     {Node: "n1", Interface: model.AllInterfaces},
		"named":   {Node: "n1", Interface: "eth0"},
		"by-addr": {Node: "n1", ExpectedIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		"gone":    {Node: "n1", Interface: "eth7"},
		"other":   {Node: "n1", Interface: "lan0"},
		"n2":      {Node: "n2", Interface: "eth7"},
	} {
		h.Name = name
		c.HostEndpoints[name] = &h
	}
	snap := snapshot{hostEndpoints: hostEndpointsOf(c, "n1"), machine: machine{links: []model.LocalInterface{
		{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, {Name: "lan0"}}}}
	got := hostProblems(snap, []string{"eth0"}, false)
	if len(got) != 2 || !strings.Contains(got[0].String(), "HostEndpoint gone") || !strings.Contains(got[0].Message, "no such interface") ||
		!strings.Contains(got[1].String(), "HostEndpoint other") || !strings.Contains(got[1].Message, "no programs") {
		t.Errorf("%v", got)
	}
	if got := hostProblems(snap, nil, true); len(got) != 5 {
		t.Errorf("without eBPF: %v", got)
	}
}
