// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/plan"
)

// needsNamespaces skips a test where none may be made.
func needsNamespaces(t *testing.T) {
	t.Helper()
	if os.Getenv("WEIR_LAB_TEST") == "" || os.Getuid() != 0 {
		t.Skip("it makes network namespaces: run it as root with WEIR_LAB_TEST=1")
	}
}

// bringUp makes a lab's network, which goes with the test. What it returns runs a command in a
// machine.
func bringUp(t *testing.T, l *plan.Lab) func(machine, command string) (string, error) {
	t.Helper()
	t.Cleanup(func() {
		for _, scoped := range l.Namespaces() {
			if err := Remove(scoped); err != nil {
				t.Error(err)
			}
		}
	})
	if err := Up(l, false); err != nil {
		t.Fatal(err)
	}
	return func(machine, command string) (string, error) {
		out, err := exec.Command("ip", append([]string{"netns", "exec", plan.Scoped(l.Name, machine)}, strings.Fields(command)...)...).CombinedOutput()
		return string(out), err
	}
}

// TestVPC: machines reach each other and the outside through a VPC; a node's secondary addresses
// are at the interface that has them, and nothing passes another one with them.
func TestVPC(t *testing.T) {
	needsNamespaces(t)
	l, err := plan.NewVPC(fmt.Sprintf("vpc-%d", os.Getpid()%1000000), 1, plan.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	run := bringUp(t, l)
	must := func(machine, command string) {
		t.Helper()
		if out, err := run(machine, command); err != nil {
			t.Errorf("%s: %s: %v\n%s", machine, command, err, out)
		}
	}
	ping := "ping -c 1 -W 2 "
	for _, from := range []string{"cp", "worker1", "client1", "client3", plan.Router} {
		for _, to := range []string{"172.31.1.8", "172.31.1.207", "172.31.1.55", "172.31.2.55", "172.31.1.1"} {
			must(from, ping+to)
		}
	}
	worker, _ := l.Machine("worker1")
	first, second := worker.Interfaces[0].Pods[0].String(), worker.Interfaces[1].Pods[0].String()
	must("worker1", "ip address add "+first+"/32 dev lo")
	must("worker1", "ip address add "+second+"/32 dev lo")
	for _, from := range []string{"cp", "client1", "client3"} {
		must(from, ping+first)
	}
	// Answers of the second interface's address would leave by the first one.
	if out, err := run("client1", ping+second); err == nil {
		t.Errorf("the first interface sends with an address of the second:\n%s", out)
	}
	must("worker1", "ip rule add from "+second+" lookup 77")
	must("worker1", "ip route add "+plan.VPCGateway.String()+" dev eth1 table 77")
	must("worker1", "ip route add default via "+plan.VPCGateway.String()+" dev eth1 table 77")
	for _, from := range []string{"cp", "client1", "client3"} {
		must(from, ping+second)
	}
	if out, err := run("client1", ping+"172.31.0.250"); err == nil {
		t.Errorf("somebody answers for an address that nobody has:\n%s", out)
	}
}

// TestVNet: in a virtual network machines reach each other, pods of nodes, and the outside; an
// overlay's addresses are reached from nodes alone, and sent with by their node alone.
func TestVNet(t *testing.T) {
	needsNamespaces(t)
	for _, overlay := range []bool{false, true} {
		l, err := plan.NewVNet(fmt.Sprintf("vn-%d-%v", os.Getpid()%1000000, overlay), 2, overlay)
		if err != nil {
			t.Fatal(err)
		}
		run := bringUp(t, l)
		reach := func(want bool, from string, to ...string) {
			t.Helper()
			for _, a := range to {
				if out, err := run(from, "ping -c 1 -W 2 "+a); (err == nil) != want {
					t.Errorf("overlay %v: %s to %s: %v\n%s", overlay, from, a, err, out)
				}
			}
		}
		machines := []string{"172.31.1.8", "172.31.1.207", "172.31.1.55", "172.31.2.55", "172.31.1.1"}
		for _, from := range []string{"cp", "worker1", "client1", "client3", plan.Router} {
			reach(true, from, machines...)
		}
		worker, _ := l.Machine("worker1")
		pod := "10.244.1.7"
		if !overlay {
			pod = worker.Interfaces[0].Pods[0].String()
		}
		if out, err := run("worker1", "ip address add "+pod+"/32 dev lo"); err != nil {
			t.Fatal(out)
		}
		reach(true, "cp", pod)
		reach(true, "worker2", pod)
		reach(!overlay, "client1", pod)
		reach(!overlay, "client3", pod)
		// Nobody else sends with a pod's address.
		if out, err := run("worker2", "ip address add "+pod+"/32 dev lo"); err != nil {
			t.Fatal(out)
		}
		reach(false, "worker2", "-I "+pod+" 172.31.1.8")
	}
}

// TestVPC6: in a VPC of IPv6 machines reach each other and the outside by IPv6, each other by IPv4
// too, and a node's part of the network is led to it, with which nobody else sends.
func TestVPC6(t *testing.T) {
	needsNamespaces(t)
	l, err := plan.NewVPC(fmt.Sprintf("vpc6-%d", os.Getpid()%1000000), 2, plan.IPv6)
	if err != nil {
		t.Fatal(err)
	}
	run := bringUp(t, l)
	reach := func(want bool, from string, to ...string) {
		t.Helper()
		for _, a := range to {
			if out, err := run(from, "ping -c 1 -W 2 "+a); (err == nil) != want {
				t.Errorf("%s to %s: %v\n%s", from, a, err, out)
			}
		}
	}
	six := []string{"fd00:172:31:1::8", "fd00:172:31:1::207", "fd00:172:31:1::55", "fd00:172:31:2::55", "fd00:172:31:1::1"}
	for _, from := range []string{"cp", "worker1", "client1", "client3", plan.Router} {
		reach(true, from, six...)
	}
	for _, from := range []string{"cp", "worker1", "client1"} {
		reach(true, from, "172.31.1.8", "172.31.1.207", "172.31.1.55")
	}
	worker, _ := l.Machine("worker1")
	pod := worker.Interfaces[0].Pods[0].String()
	for _, machine := range []string{"worker1", "worker2"} {
		if out, err := run(machine, "ip -6 address add "+pod+"/128 dev lo nodad"); err != nil {
			t.Fatal(out)
		}
	}
	for _, from := range []string{"cp", "client1", "client3"} {
		reach(true, from, pod)
	}
	reach(true, "worker1", "-I "+pod+" fd00:172:31:1::8")
	reach(false, "worker2", "-I "+pod+" fd00:172:31:1::8")
	reach(false, "client1", "fd00:172:31::9:1")
}
