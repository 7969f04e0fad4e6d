// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// TestDeparture: times of departure hold a pod to what a queue with its rate would, and what is in
// no queue waits no longer than it can.
func TestDeparture(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits model.Limits
		want   Departure
	}{
		"as long as a queue":     {model.Limits{Bandwidth: 80e6}, Departure{10e6, time.Second / burstOf, time.Second / waitOf}},
		"a burst that is said":   {model.Limits{Bandwidth: 80e6, Burst: 800e6}, Departure{10e6, 10 * time.Second, time.Second / waitOf}},
		"a slow one":             {model.Limits{Bandwidth: 655360}, Departure{81920, time.Second * 2 * 1514 / 81920, time.Second * waitLeast / 81920}},
		"one that waits forever": {model.Limits{Bandwidth: 1000}, Departure{125, time.Second * 2 * 1514 / 125, longestWait}},
	} {
		got := departure(1500, c.limits)
		near := func(a, b time.Duration) bool { return (a - b).Abs() < time.Microsecond }
		if got.Rate != c.want.Rate || !near(got.Burst, c.want.Burst) || !near(got.Wait, c.want.Wait) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
