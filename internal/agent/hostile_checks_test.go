package agent

import (
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A process of the host has a port that a tenant's Service asks for, with real sockets. It restarts: for a moment nobody has
// the port.
func TestHostileHealthCheckPortOfHost(t *testing.T) {
	hostile.Record(t, "a healthCheckNodePort takes the port of a process of the host while that restarts", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, network := range []string{"127.0.0.1", "::1"} {
		first, err := net.Listen("tcp", net.JoinHostPort(network, "0"))
		if err != nil {
			t.Fatal(err)
		}
		addr := first.Addr().String()
		port := portOf(addr)
		name := model.Name{Namespace: "team", Name: "evil"}
		now := time.Unix(1e9, 0)
		c := newServiceChecks(slog.New(slog.DiscardHandler), func() bool { return true })
		c.held.now = func() time.Time { return now }
		s := healthState(map[model.Name]nodestate.HealthCheck{name: {Port: port, Local: 1}})
		look := func() { c.follow(s, []string{network}) }
		look()
		if len(c.open) != 0 || len(checkProblems("n0", c.failing())) != 1 {
			t.Fatalf("open %v, problems %v", c.open, checkProblems("n0", c.failing()))
		}
		first.Close()
		now = now.Add(5 * time.Second)
		look()
		second, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatalf("the process could not take its port again: %v", err)
		}
		now = now.Add(2 * time.Minute)
		look() // somebody has it
		second.Close()
		now = now.Add(heldFor - time.Second)
		look()
		if len(c.open) != 0 {
			t.Error("taken too early")
		}
		now = now.Add(2 * time.Second)
		look()
		if len(c.open) != 1 || len(c.failing()) != 0 {
			t.Errorf("after a minute without anybody: open %v", c.open)
		}
		c.close()
	}
}

// Whoever reads a node's status sees what is wrong with the node, however many Services a tenant makes.
func TestHostileReports(t *testing.T) {
	hostile.Record(t, "a tenant's refused Services crowd the node's own problems out of its status", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	s := nodestate.New()
	refused := map[nodestate.Object][]nodestate.Refusal{}
	for i := range 3000 {
		o := nodestate.Object{Kind: "Service", Name: model.Name{Namespace: "team", Name: fmt.Sprintf("evil-%04d", i)}}
		refused[o] = []nodestate.Refusal{{Field: "spec.externalIPs", Value: "192.0.2.1", Message: "is allowed", Allowed: i < 2000}}
	}
	s.Refused = nodestate.MapOf(refused)
	got := refusalProblems(s)
	if len(got) != maxRefusals+1 || got[0].Object != "Service team/evil-2000" {
		t.Errorf("%d problems, the first %v", len(got), got[0])
	}
}
