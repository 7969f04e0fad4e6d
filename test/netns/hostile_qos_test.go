// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// TestHostileForgedResets: a pod that may have a number of connections open forges resets of its
// own, which its peer ignores because they have no number that fits, to begin others meanwhile. No
// more than it may have open carry anything.
func TestHostileForgedResets(t *testing.T) { inBoth(t, testHostileForgedResets) }

func testHostileForgedResets(t *testing.T, fam family) {
	const most = 3
	record(t, "a pod forges resets of its own connections, to have more of them open than it may", hostile.RawPod, fam)
	r := newRawPod(t, fam)
	r.limited(&model.QoS{Egress: model.Limits{Connections: most}})
	var open []int
	for id := 100; id < 100+3*most; id++ {
		a := r.a.call(request{Op: "open", Net: "tcp", Addr: r.c.at("8080"), ID: id, Timeout: 2000})
		if a.Err != "" {
			if len(open) < most {
				t.Fatalf("connection %d: %s", len(open)+1, a.Err)
			}
			continue
		}
		open = append(open, id)
		_, mine, _ := strings.Cut(a.Reply, " ") // as c saw it
		r.at["a"].send(r.frame("tcp %s > %s R seq=1 ttl=64", fam.endpoint(mine), fam.endpoint(r.c.at("8080"))))
		time.Sleep(50 * time.Millisecond)
	}
	works := 0
	for _, id := range open {
		if a := r.a.call(request{Op: "talk", ID: id, Timeout: 1000}); a.Err == "" {
			works++
		}
	}
	if works > most {
		t.Errorf("%d connections work of %d that were begun, want %d at most", works, len(open), most)
	}
	if works == 0 {
		t.Errorf("none of %d connections works", len(open))
	}
}
