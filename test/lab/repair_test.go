// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestDetachedPrograms: what somebody detaches is attached again (-judge: within a second), and
// reported.
func TestDetachedPrograms(t *testing.T) {
	b := sharedBase(t)
	b.metricsOn(t, "worker1")
	const links = "/sys/fs/bpf/weir/links/"
	index := strings.TrimSpace(b.must(t, "worker1", "cat", "/sys/class/net/eth0/ifindex"))
	pod := b.hostIfindex(t, b.cli1)
	repairs := func() float64 { return b.metrics(t, "worker1")[`weir_dataplane_repairs_total{what="program"}`] }
	// A pod's interface begins with filters; its links come when no pod was started for a while.
	eventually(t, time.Minute, "the links of the pod's interface", func() error {
		_, err := b.exec("worker1", "test", "-e", links+pod+"-from_workload")
		return err
	})
	for _, link := range []string{index + "-from_uplink", index + "-to_uplink", pod + "-from_workload", "cgroup-connect4"} {
		for _, how := range []string{"link detach", "pin removed"} {
			t.Run(link[strings.Index(link, "-")+1:]+", "+how, func(t *testing.T) {
				before := repairs()
				began := time.Now()
				if how == "link detach" {
					b.must(t, "worker1", "bpftool", "link", "detach", "pinned", links+link)
				} else {
					b.must(t, "worker1", "rm", links+link)
				}
				eventually(t, 10*time.Second, "repair", func() error {
					if n := repairs() - before; n != 1 {
						return fmt.Errorf("%v repairs are counted, want 1", n)
					}
					return nil
				})
				took := time.Since(began)
				note(t, "repaired, seen from outside (ms)", float64(took.Milliseconds()))
				late := time.Duration(control.since(began, 1) * float64(time.Millisecond))
				if limit := time.Second + 10*late; *strictTiming && took > limit {
					t.Errorf("the repair took %v, and the machine was late by %v at most", took, late)
				}
				b.client(1).reaches(t, at(worker1Addr, nodePort1+nodeWho), "srv1", client1Addr)
				b.cli1.reaches(t, at(b.svc2, whoPort), "srv2", b.cli1.addr)
				if out := b.must(t, "worker1", "bpftool", "link", "show", "pinned", links+link); strings.Contains(out, "detached") {
					t.Errorf("the link is still detached: %s", out)
				}
			})
		}
	}
	b.says(t, 1, "Node worker1", "put back")
	// The report goes with the agent that made it: other tests want a content status.
	if err := b.fresh("worker1"); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	b.agentsReady(t, 60*time.Second, nil)
	b.says(t, 0, "healthy on 3 of 3")
}

// hostIfindex is the index of a pod's interface on its node.
func (l *lab) hostIfindex(t *testing.T, p *place) string {
	t.Helper()
	out, err := p.do("ip", "-o", "link", "show", "eth0")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(out, "eth0@if")
	index, _, ok := strings.Cut(rest, ":")
	if !ok {
		t.Fatalf("what is the other end of %q", out)
	}
	return index
}
