package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// apiServers finds the API server. The configured address may be one that Weir itself makes reachable
// (the cluster IP), or one of several servers that is down: when it does not answer, the servers' own
// addresses are tried, as the cluster told them last. TLS is checked against the configured name all the
// same, and nothing is sent before that.
type apiServers struct {
	log  *slog.Logger
	file remembered[[]string]

	mu      sync.Mutex
	learned []string // host:port, sorted
	used    string   // fall-back in use, for the log

	dialer net.Dialer
}

// patience is how long the configured address is tried alone.
const patience = time.Second

func newAPIServers(file string, log *slog.Logger) *apiServers {
	s := &apiServers{log: log, file: remembered[[]string]{path: file, log: log},
		dialer: net.Dialer{Timeout: 3 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}}}
	for _, a := range s.file.load() {
		if _, err := netip.ParseAddrPort(a); err != nil {
			log.Warn("a learned address of the API server is not one; left out", "file", file, "address", a)
			continue
		}
		s.learned = append(s.learned, a)
	}
	return s
}

// learn keeps the servers' addresses, for now and for the next start. None teach nothing.
func (s *apiServers) learn(addrs []string) {
	s.mu.Lock()
	same := len(addrs) == 0 || slices.Equal(addrs, s.learned)
	if !same {
		s.learned = slices.Clone(addrs)
	}
	s.mu.Unlock()
	if !same {
		s.log.Info("addresses of the API server", "addresses", addrs)
		_ = s.file.save(addrs) // reported by save
	}
}

// noteServers keeps those of the changed EndpointSlices that are apiService's.
func noteServers(servers, changes map[model.Name]*model.EndpointSlice) {
	for name, slice := range changes {
		if slice != nil && slice.Service == apiService {
			servers[name] = slice
		} else {
			delete(servers, name)
		}
	}
}

// apiServersOf reads them from the EndpointSlices of apiService.
func apiServersOf(slicesByName map[model.Name]*model.EndpointSlice) []string {
	var out []string
	for _, s := range slicesByName {
		for _, p := range s.Ports {
			if p.Protocol != model.ProtocolTCP {
				continue
			}
			for _, e := range s.Endpoints {
				for _, a := range e.Addrs {
					out = append(out, netip.AddrPortFrom(a, p.Port).String())
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

type dialed struct {
	conn net.Conn
	addr string
	err  error
}

// dial connects to the configured address, or to the first learned one that answers.
func (s *apiServers) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.dialer.Timeout)
	defer cancel()
	s.mu.Lock()
	others := slices.DeleteFunc(slices.Clone(s.learned), func(a string) bool { return a == addr })
	s.mu.Unlock()
	results := make(chan dialed, 1+len(others))
	try := func(a string) {
		conn, err := s.dialer.DialContext(ctx, network, a)
		results <- dialed{conn, a, err}
	}
	go try(addr)
	running := 1
	wait := time.NewTimer(patience)
	defer wait.Stop()
	var errs []error
	for running > 0 {
		select {
		case r := <-results:
			running--
			if r.err == nil {
				s.note(addr, r.addr)
				go discard(results, running)
				return r.conn, nil
			}
			errs = append(errs, r.err)
		case <-wait.C:
		}
		for _, o := range others {
			go try(o)
		}
		running += len(others)
		others = nil
	}
	return nil, fmt.Errorf("the API server does not answer at %s, nor at the addresses learned before: %w", addr, errors.Join(errs...))
}

// discard closes connections that came too late.
func discard(results chan dialed, n int) {
	for range n {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
}

func (s *apiServers) note(configured, used string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used == configured {
		used = ""
	}
	if used == s.used {
		return
	}
	s.used = used
	if used == "" {
		s.log.Info("the API server is reached at the configured address", "address", configured)
		return
	}
	s.log.Warn("the API server is reached at an address learned before; the configured one does not answer", "configured", configured, "used", used)
}

// hostPort joins a host, empty for all addresses, and a port.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
