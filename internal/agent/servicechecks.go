package agent

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// serviceChecks answers load balancers for each Service that has a healthCheckNodePort. It is for one goroutine.
type serviceChecks struct {
	log     *slog.Logger
	healthy func() bool
	listen  func(addr string) (net.Listener, error)

	open   map[string]*serviceCheck // by host:port
	failed map[string]bool          // was said
	first  bool                     // nothing was followed yet
	seen   nodestate.Map[model.Name, nodestate.HealthCheck]
	hosts  []string
}

type serviceCheck struct {
	name   model.Name
	local  atomic.Int64 // endpoints
	server *http.Server
}

func newServiceChecks(log *slog.Logger, healthy func() bool) *serviceChecks {
	return &serviceChecks{log: log, healthy: healthy, first: true, open: map[string]*serviceCheck{}, failed: map[string]bool{},
		listen: func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }}
}

// follow listens where a state says, on hosts, and answers by it from now on. What could not be opened is tried
// again by the next call.
func (c *serviceChecks) follow(s *nodestate.State, hosts []string) {
	if !c.first && len(c.failed) == 0 && slices.Equal(hosts, c.hosts) && !healthChanged(c.seen, s.HealthChecks) {
		return
	}
	c.first, c.seen, c.hosts = false, s.HealthChecks, hosts
	want := map[string]model.Name{}
	for name, h := range s.HealthChecks.All() {
		for _, host := range hosts {
			at := hostPort(host, h.Port)
			// The API gives a port once; by hand it may be there twice.
			if other, taken := want[at]; !taken || name.String() < other.String() {
				want[at] = name
			}
		}
	}
	for at, check := range c.open {
		if name, ok := want[at]; !ok || name != check.name {
			check.server.Close()
			delete(c.open, at)
		}
	}
	for at := range c.failed {
		if _, ok := want[at]; !ok {
			delete(c.failed, at)
		}
	}
	for at, name := range want {
		if c.open[at] == nil && !c.start(at, name) {
			continue
		}
		c.open[at].local.Store(int64(s.HealthChecks.At(name).Local))
	}
}

func healthChanged(before, after nodestate.Map[model.Name, nodestate.HealthCheck]) bool {
	for range nodestate.Changes(before, after, func(a, b nodestate.HealthCheck) bool { return a == b }) {
		return true
	}
	return false
}

// start reports whether it could listen.
func (c *serviceChecks) start(at string, name model.Name) bool {
	ln, err := c.listen(at)
	if err != nil {
		if !c.failed[at] {
			c.log.Error("cannot serve a Service's healthCheckNodePort; trying again", "service", name.String(), "address", at, "error", err)
		}
		c.failed[at] = true
		return false
	}
	delete(c.failed, at)
	check := &serviceCheck{name: name}
	check.server = &http.Server{Handler: c.handler(check), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 1 << 14}
	c.open[at] = check
	c.log.Info("serving a Service's healthCheckNodePort", "service", name.String(), "address", ln.Addr().String())
	go func() {
		if err := check.server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			c.log.Error("serving a Service's healthCheckNodePort ended", "service", name.String(), "error", err)
		}
	}()
	return true
}

// handler answers as kube-proxy does.
func (c *serviceChecks) handler(check *serviceCheck) http.Handler {
	type object struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, healthy := check.local.Load(), c.healthy()
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(n, 10))
		writeJSON(w, n > 0 && healthy, struct {
			Service object `json:"service"`
			Local   int64  `json:"localEndpoints"`
			Healthy bool   `json:"serviceProxyHealthy"`
		}{object(check.name), n, healthy})
	})
}

func (c *serviceChecks) close() {
	for _, check := range c.open {
		check.server.Close()
	}
	clear(c.open)
}
