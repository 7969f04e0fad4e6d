// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/httplimit"
)

// The agent's own ports are bounded where they are opened.
func TestHostileIdleConnectionsOfAgent(t *testing.T) {
	hostile.Record(t, "idle connections to the port for health or metrics, where the agent opens it", hostile.Pod, hostile.ControlPlane, hostile.IPv4)
	l := &Listener{What: "health", Log: slog.New(slog.DiscardHandler)}
	at := hostile.FreeTCP(t)
	l.Ensure(at, http.NotFoundHandler())
	defer l.Close()
	if n := hostile.Refused(t, "127.0.0.2", at, 10*httplimit.DefaultPerSource); n < httplimit.DefaultPerSource {
		t.Errorf("%d of %d idle connections of one caller were refused", n, 10*httplimit.DefaultPerSource)
	}
}
