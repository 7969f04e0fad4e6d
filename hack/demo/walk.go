// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/lab"
)

var (
	//go:embed nginx.yaml
	nginxYAML string
	//go:embed policy.yaml
	policyYAML string
)

// door is where the clients go: the node port, at the node that does not run nginx.
var door = netip.AddrPortFrom(lab.ControlPlane, 30604)

// stage is a lab with what is shown in it.
type stage struct {
	lab              *lab.Lab
	modes            []*mode
	client1, client2 lab.Place
	nginx            lab.Place
}

// mode is one line of the result.
type mode struct {
	name  string
	stage *stage
	// What nginx' access log says of the two clients.
	seen, seenSecond string
	denied           bool
	packets          float64 // that the control-plane node sends for one connection
	rounds           bench.Outcome
	raw              []float64 // µs
}

func newStage(name, proxy, bin string) (*stage, error) {
	l, err := lab.New(name, proxy, bin, os.Stdout)
	if err != nil {
		return nil, err
	}
	return &stage{lab: l, client1: l.Host("client1", lab.Client1), client2: l.Host("client2", lab.Client2)}, nil
}

func (s *stage) add(name string) { s.modes = append(s.modes, &mode{name: name, stage: s}) }

func (s *stage) weir() bool { return s.lab.Proxy == "weir" }

// walk brings a lab up and shows, in each of its modes, who nginx thinks is calling and whom a
// policy keeps out.
func (d *demo) walk(ctx context.Context, s *stage) error {
	d.step("A Kubernetes of three nodes and two outside clients, Services carried by %s", s.lab.Proxy)
	if err := s.lab.Up(ctx); err != nil {
		return err
	}
	d.step("nginx on worker1 (%v), node port %d", lab.Worker1, door.Port())
	if _, err := s.lab.Kubectl(ctx, nginxYAML, "apply", "-f", "-"); err != nil {
		return err
	}
	pod, err := s.lab.Pod(ctx, "nginx")
	if err != nil {
		return err
	}
	d.say("pod nginx is ready: %v on %s", pod.Addr, pod.Machine)
	s.nginx = pod
	for i, m := range s.modes {
		if err := d.enter(ctx, m); err != nil {
			return err
		}
		if err := d.fetch(ctx, m); err != nil {
			return err
		}
		d.step("A NetworkPolicy that lets only %v/32 in", lab.Client1)
		if _, err := s.lab.Kubectl(ctx, policyYAML, "apply", "-f", "-"); err != nil {
			return err
		}
		if err := d.refuse(ctx, m); err != nil {
			return err
		}
		if i == len(s.modes)-1 {
			break
		}
		if _, err := s.lab.Kubectl(ctx, policyYAML, "delete", "-f", "-"); err != nil {
			return err
		}
		if err := reachable(ctx, s.client2); err != nil {
			return fmt.Errorf("the policy is gone, but client2 does not get in: %w", err)
		}
		d.say("the policy is removed again: client2 gets in")
	}
	return nil
}

// enter switches a lab that Weir carries to the mode, live, and waits until new connections take
// its way.
func (d *demo) enter(ctx context.Context, m *mode) error {
	s := m.stage
	if !s.weir() {
		return reachable(ctx, s.client1)
	}
	want := lab.Tunnel
	if m.name == "weir-dsr" {
		want = lab.DSR
	}
	d.step("Mode %s, live: weir patch felixconfiguration default --patch '%s'", want, lab.ModePatch(want))
	if err := reachable(ctx, s.client1); err != nil {
		return err
	}
	if err := s.lab.SetMode(ctx, want); err != nil {
		return err
	}
	packets, err := lab.AwaitMode(ctx, s.client1, door, want)
	if err != nil {
		return err
	}
	m.packets = packets
	how := "answers go back through it"
	if want == lab.DSR {
		how = "answers go straight to the client"
	}
	d.say("the control-plane node sends %.1f packets a connection: %s", packets, how)
	return nil
}

// reachable waits for the Service to have its backend everywhere.
func reachable(ctx context.Context, from lab.Place) error {
	var err error
	for start := time.Now(); time.Since(start) < 20*time.Second && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		if _, err = from.Bench(ctx, "get", door.String(), "--patience", "1s"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("nginx cannot be reached at %v: %w", door, err)
}

// fetch gets nginx' page from both clients and finds them in its access log.
func (d *demo) fetch(ctx context.Context, m *mode) error {
	s := m.stage
	d.step("Both clients fetch http://%v/, the control-plane node's address", door)
	for _, c := range []struct {
		from lab.Place
		seen *string
	}{{s.client1, &m.seen}, {s.client2, &m.seenSecond}} {
		mark := fmt.Sprintf("/?from=%s&mode=%s", c.from.Machine, m.name)
		body, err := c.from.Bench(ctx, "get", door.String(), "--path", mark, "--patience", "5s")
		if err != nil {
			return err
		}
		title := regexp.MustCompile(`<h1>(.*)</h1>`).FindStringSubmatch(body)
		if title == nil {
			return fmt.Errorf("%v got something that is not nginx' page: %q", c.from, body)
		}
		line, err := s.logged(ctx, mark)
		if err != nil {
			return err
		}
		*c.seen, _, _ = strings.Cut(line, " ")
		d.say("%s (%v) gets %q; nginx logs: %s", c.from.Machine, c.from.Addr, title[1], line)
		if s.weir() && *c.seen != c.from.Addr.String() {
			return fmt.Errorf("nginx saw %s, not the client's address %v", *c.seen, c.from.Addr)
		}
	}
	return nil
}

// logged returns the newest line of nginx' access log that holds the text; the log takes a moment.
func (s *stage) logged(ctx context.Context, text string) (string, error) {
	for range 50 {
		log, err := s.lab.Kubectl(ctx, "", "logs", "nginx", "--tail", "200")
		if err != nil {
			return "", err
		}
		lines := strings.Split(log, "\n")
		for i := len(lines) - 1; i >= 0; i-- {
			if strings.Contains(lines[i], text) {
				return lines[i], nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", fmt.Errorf("no line with %q came into nginx' access log", text)
}

// patience is how long the second client waits before it takes silence as a refusal.
const patience = 2 * time.Second

// refuse sees whether the policy keeps the second client out and lets the first one in.
func (d *demo) refuse(ctx context.Context, m *mode) error {
	s := m.stage
	began := time.Now()
	var err error
	for {
		if _, err = s.client2.Bench(ctx, "get", door.String(), "--patience", patience.String()); err != nil || ctx.Err() != nil {
			break
		}
		if !s.weir() || time.Since(began) > 10*time.Second {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.denied = err != nil
	switch {
	case m.denied:
		_, why, _ := strings.Cut(err.Error(), "weir-bench: ")
		d.say("client2 (%v) is refused: %s", lab.Client2, why)
	case s.weir():
		return fmt.Errorf("client2 (%v) still gets in %v after the policy was applied", lab.Client2, time.Since(began).Round(time.Second))
	default:
		d.say("client2 (%v) still gets in: %s enforces no policy", lab.Client2, s.lab.Proxy)
	}
	if _, err := s.client1.Bench(ctx, "get", door.String(), "--patience", patience.String()); err != nil {
		return fmt.Errorf("the policy must let client1 in: %w", err)
	}
	d.say("client1 (%v) gets in", lab.Client1)
	return nil
}
