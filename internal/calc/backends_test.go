package calc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// endpoint is one in the state that a word names.
func endpoint(ip, node, state string) model.ServiceEndpoint {
	e := model.ServiceEndpoint{Addrs: []netip.Addr{addr(ip)}, Node: node}
	switch state {
	case "ready":
		e.Ready, e.Serving = true, true
	case "draining":
		e.Serving, e.Terminating = true, true
	case "gone":
		e.Terminating = true
	case "unready":
	}
	return e
}

// The node under test is worker.
func TestListsByKEP1669(t *testing.T) {
	t.Parallel()
	const here, there = "worker", "far"
	for _, test := range []struct {
		name       string
		eps        []model.ServiceEndpoint
		publishAll bool
		all, local []string
		live       int
	}{
		{name: "ready everywhere", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "ready"), endpoint("10.244.2.1", there, "ready")},
			all: []string{"10.244.1.1", "10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "draining here, ready there", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "draining"), endpoint("10.244.2.1", there, "ready")},
			all: []string{"10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "draining beside ready", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "draining"), endpoint("10.244.1.2", here, "ready"),
			endpoint("10.244.2.1", there, "draining")}, all: []string{"10.244.1.2"}, local: []string{"10.244.1.2"}, live: 3},
		{name: "all draining", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "draining"), endpoint("10.244.2.1", there, "draining")},
			all: []string{"10.244.1.1", "10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "gone and unready", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "gone"), endpoint("10.244.2.1", there, "unready")}},
		{name: "published anyway", publishAll: true, eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "unready"), endpoint("10.244.2.1", there, "draining")},
			all: []string{"10.244.1.1", "10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "twice, ready once", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", here, "draining"), endpoint("10.244.1.1", here, "ready")},
			all: []string{"10.244.1.1"}, local: []string{"10.244.1.1"}, live: 1},
	} {
		c := twoServices()
		c.Services[name("b", "web")].PublishNotReady = test.publishAll
		sl := *c.Slices[name("b", "web-x")]
		sl.Endpoints = test.eps
		c.Slices[sl.Name] = &sl
		got := Calc(c).Backends.At(front("10.96.0.1", 80))
		if len(got) != test.live {
			t.Errorf("%s: %d backends that are not gone, want %d: %v", test.name, len(got), test.live, got)
		}
		for local, want := range map[bool][]string{false: test.all, true: test.local} {
			var list []string
			for _, b := range got {
				if b.InList(local) {
					list = append(list, b.Addr.String())
				}
			}
			if !slices.Equal(list, want) {
				t.Errorf("%s: list (local %t) is %v, want %v", test.name, local, list, want)
			}
		}
	}
}

// An address that is a cluster IP by one field and external by another is a cluster IP.
func TestPolicyFollowsTheFrontend(t *testing.T) {
	t.Parallel()
	c := twoServices()
	svc := c.Services[name("b", "web")]
	svc.ExternalLocal = true
	svc.ExternalIPs = []netip.Addr{addr("192.0.2.9"), svc.ClusterIPs[0]}
	s := Calc(c)
	if v := s.Frontends.At(front("192.0.2.9", 80)); !v.External || !v.LocalPolicy {
		t.Errorf("external IP: %+v", v)
	}
	if v := s.Frontends.At(front("10.96.0.1", 80)); v.External || v.LocalPolicy {
		t.Errorf("cluster IP: %+v", v)
	}
	svc.ExternalLocal, svc.InternalLocal = false, true
	s = Calc(c)
	if v := s.Frontends.At(front("192.0.2.9", 80)); !v.External || v.LocalPolicy {
		t.Errorf("external IP: %+v", v)
	}
	want := nodestate.Service{ID: front("10.96.0.1", 80), LocalPolicy: true, Rule: s.Frontends.At(front("10.96.0.1", 80)).Rule}
	if v := s.Frontends.At(front("10.96.0.1", 80)); v != want {
		t.Errorf("cluster IP: %+v, want %+v", v, want)
	}
}
