// SPDX-License-Identifier: Apache-2.0

package lbhealth

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-net/weir/internal/agent/httpserve"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Bounds of all health checks of Services together: tenants make as many of these as they like, and
// their ports are open to everybody.
const (
	maxCheckConns          = 1024
	maxCheckConnsPerSource = 64
	// maxChecksOfNamespace is how many Services of one namespace are answered for.
	maxChecksOfNamespace = 512
)

// ServiceChecks answers load balancers for each Service that has a healthCheckNodePort. It is for
// one goroutine.
type ServiceChecks struct {
	log     *slog.Logger
	healthy func() bool
	listen  func(addr string) (net.Listener, error)

	open   map[string]*serviceCheck // by host:port
	failed map[string]model.Name    // was said
	beyond []model.Name             // Services that their namespace has too many of, sorted
	held   foreignPorts
	budget *httplimit.Budget // of all of open
	mu     sync.Mutex        // of failed and beyond, for failing and unanswered
	first  bool              // nothing was followed yet
	seen   nodestate.Map[model.Name, nodestate.HealthCheck]
	hosts  []string
}

type serviceCheck struct {
	name   model.Name
	local  atomic.Int64 // endpoints
	server *http.Server
}

func NewServiceChecks(log *slog.Logger, healthy func() bool) *ServiceChecks {
	return &ServiceChecks{log: log, healthy: healthy, first: true, open: map[string]*serviceCheck{}, failed: map[string]model.Name{}, held: newForeignPorts(),
		budget: httplimit.NewBudget(maxCheckConns, maxCheckConnsPerSource),
		listen: func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }}
}

// Update listens where a state says, on hosts, and answers by it from now on. What could not be
// opened is tried again by the next call.
func (c *ServiceChecks) Update(s *nodestate.State, hosts []string) {
	if !c.first && len(c.failed) == 0 && slices.Equal(hosts, c.hosts) && !healthChanged(c.seen, s.HealthChecks) {
		return
	}
	c.first, c.seen, c.hosts = false, s.HealthChecks, hosts
	c.mu.Lock()
	defer c.mu.Unlock()
	ports := map[uint16]bool{}
	want := map[string]model.Name{}
	beyond := c.beyondShare(s)
	c.beyond = slices.SortedFunc(maps.Keys(beyond), func(a, b model.Name) int { return strings.Compare(a.String(), b.String()) })
	for name, h := range s.HealthChecks.All() {
		if beyond[name] {
			continue
		}
		ports[h.Port] = true
		for _, host := range hosts {
			at := httpserve.HostPort(host, h.Port)
			// The API gives a port once; by hand it may be there twice.
			if other, taken := want[at]; !taken || name.String() < other.String() {
				want[at] = name
			}
		}
	}
	c.held.keep(ports)
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

// beyondShare returns the Services whose checks their namespaces have too many of. Those that are
// answered for go on to be, and of others the smaller names come first.
func (c *ServiceChecks) beyondShare(s *nodestate.State) map[model.Name]bool {
	of := map[string][]model.Name{}
	for name := range s.HealthChecks.All() {
		of[name.Namespace] = append(of[name.Namespace], name)
	}
	answered := map[model.Name]bool{}
	for _, check := range c.open {
		answered[check.name] = true
	}
	out := map[model.Name]bool{}
	for _, names := range of {
		if len(names) <= maxChecksOfNamespace {
			continue
		}
		slices.SortFunc(names, func(a, b model.Name) int {
			if answered[a] != answered[b] {
				if answered[a] {
					return -1
				}
				return 1
			}
			return strings.Compare(a.Name, b.Name)
		})
		for _, name := range names[maxChecksOfNamespace:] {
			out[name] = true
		}
	}
	return out
}

func healthChanged(before, after nodestate.Map[model.Name, nodestate.HealthCheck]) bool {
	for range nodestate.Changes(before, after, func(a, b nodestate.HealthCheck) bool { return a == b }) {
		return true
	}
	return false
}

// start reports whether it could listen.
func (c *ServiceChecks) start(at string, name model.Name) bool {
	if !c.held.free(portOf(at)) {
		c.failed[at] = name
		return false
	}
	ln, err := c.listen(at)
	if err != nil {
		c.held.failed(portOf(at), err)
		if _, said := c.failed[at]; !said {
			c.log.Error("cannot serve a Service's healthCheckNodePort; trying again", "service", name.String(), "address", at, "error", err)
		}
		c.failed[at] = name
		return false
	}
	delete(c.failed, at)
	check := &serviceCheck{name: name}
	check.server = httplimit.NewServer(c.handler(check))
	c.open[at] = check
	c.log.Info("serving a Service's healthCheckNodePort", "service", name.String(), "address", ln.Addr().String())
	go func() {
		if err := check.server.Serve(c.budget.Listener(ln)); err != nil && !errors.Is(err, http.ErrServerClosed) {
			c.log.Error("serving a Service's healthCheckNodePort ended", "service", name.String(), "error", err)
		}
	}()
	return true
}

// handler answers as kube-proxy does.
func (c *ServiceChecks) handler(check *serviceCheck) http.Handler {
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

// Failing returns what cannot be listened at, and for whom. Any goroutine may call it.
func (c *ServiceChecks) Failing() map[string]model.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.failed)
}

// Unanswered returns the Services that are not answered for because their namespace has too many.
// Any goroutine may call it.
func (c *ServiceChecks) Unanswered() []model.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.beyond)
}

func (c *ServiceChecks) Close() {
	for _, check := range c.open {
		check.server.Close()
	}
	clear(c.open)
}
