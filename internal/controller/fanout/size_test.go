// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"fmt"
	"testing"
)

func parse(t *testing.T, text string) MinNodes {
	t.Helper()
	m, err := ParseMinNodes(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReplicasOfNodes(t *testing.T) {
	for _, c := range []struct {
		min               string
		nodes, have, want int
	}{
		{"", 0, 0, 0}, {"", 99, 0, 0}, {"", 100, 0, 2}, {"", 500, 0, 2}, {"", 1000, 2, 2}, {"", 1001, 2, 3}, {"", 5000, 0, 10}, {"", 10000, 2, 20}, {"", 100000, 2, 20},
		// What the Deployment begins with is not there for the number of nodes.
		{"", 1, 1, 0}, {"", 95, 1, 0}, {"", 100, 1, 2},
		// Nine tenths of what it was made for.
		{"", 90, 2, 2}, {"", 89, 2, 0}, {"", 90, 5, 2}, {"", 901, 3, 3}, {"", 900, 3, 2}, {"", 450, 3, 2}, {"", 2251, 6, 6}, {"", 2250, 6, 5}, {"", 1000, 6, 3},
		// Somebody's own number does not stay.
		{"", 1000, 50, 3}, {"", 100000, 50, 20},
		{"0", 0, 0, 2}, {"0", 1, 1, 2}, {"0", 1001, 2, 3}, {"0", 10, 3, 2},
		{"never", 5000, 10, 0}, {"never", 5000, 0, 0},
		{"3", 2, 0, 0}, {"3", 3, 0, 2}, {"3", 2, 2, 0},
	} {
		if got := parse(t, c.min).replicas(c.nodes, c.have); got != c.want {
			t.Errorf("FANOUT_MIN_NODES %q, %d nodes, %d replicas: %d replicas, want %d", c.min, c.nodes, c.have, got, c.want)
		}
	}
}

// A number stays as it is for all numbers of nodes down to nine tenths of where it began, and what
// follows from the same number of nodes twice is the same.
func TestReplicasDoNotSwing(t *testing.T) {
	m := parse(t, "")
	for began := 100; began <= 10000; began++ {
		n := m.replicas(began, 0)
		for nodes := began; 10*nodes >= 9*began; nodes-- {
			if got := m.replicas(nodes, n); got != n {
				t.Fatalf("%d replicas of %d nodes are %d at %d", n, began, got, nodes)
			}
		}
		for _, nodes := range []int{began / 2, began - 1, began, began + 1, 2 * began} {
			once := m.replicas(nodes, n)
			if again := m.replicas(nodes, once); again != once {
				t.Fatalf("%d replicas at %d nodes are %d, and then %d", n, nodes, once, again)
			}
		}
	}
}

func TestMinNodesThatCannotBe(t *testing.T) {
	for _, text := range []string{"-1", "always", "1.5", "Never", " 3", fmt.Sprint(uint64(1) << 31)} {
		if m, err := ParseMinNodes(text); err == nil {
			t.Errorf("%q is %+v", text, m)
		}
	}
}
