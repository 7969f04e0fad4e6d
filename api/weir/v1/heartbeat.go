// SPDX-License-Identifier: Apache-2.0

package v1

import "time"

// HeartbeatEvery is about how often each agent of a cluster with so many nodes writes its
// NodeStatus where nothing else has it written: every thirty seconds, and together ten a second at
// most.
func HeartbeatEvery(nodes int) time.Duration {
	return max(30*time.Second, time.Duration(nodes)*100*time.Millisecond)
}
