// SPDX-License-Identifier: Apache-2.0

// Package vmflows has open flows of a virtual machine go on when it is moved to another node, which
// has not seen them begin: before that node takes the machine's address over, the controller reads
// the flows at the node that the machine leaves, and brings them to it. There they are flows that
// policy has not evaluated: the next packet of each is evaluated in the direction in which the flow
// began. Flows are as connection tracking would have them, so both data planes give and take them.
package vmflows

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// DataPlane knows flows.
type DataPlane interface {
	// FlowsOf returns the flows that have an end at an address, as connection tracking would have
	// them, but for those that go by another node whatever the routes say.
	FlowsOf(a netip.Addr) ([]conntrack.Entry, error)
	// PutFlows writes flows with an end at an address that is, or is about to be, at a pod's
	// interface of this node: what this node knows in the same direction and without translation at
	// the address stays. With interface 0 the address is elsewhere, and the flows replace what is
	// there of them. Policy evaluates each at its next packet.
	PutFlows(a netip.Addr, ifindex int, flows []conntrack.Entry) error
}

// Machines say where virtual machines are.
type Machines interface {
	// Kept says which machine has an address, "" when none does.
	Kept(a netip.Addr) string
	// EndpointOf returns this node's endpoint of the address of a machine that is at this node, or
	// is moved to it; nil = it is neither.
	EndpointOf(a netip.Addr) *model.LocalEndpoint
}

// Server answers the controller. The zero values of what is not exported are ready to use.
type Server struct {
	Plane    DataPlane
	Machines Machines
	State    func() *nodestate.State // nil = not known yet
	Log      *slog.Logger

	mu       sync.Mutex
	arrivals map[netip.Addr]*arrival
}

// arrival of a machine for which the controller waits.
type arrival struct {
	asking  int           // questions that wait
	here    chan struct{} // closed when the machine announces itself
	brought chan struct{} // closed when its flows are here
	isHere  bool
	isOver  bool
}

// bringWithin is how long a machine that has announced itself is not reached yet because its flows
// are not here: TCP sends its first segment again after as long.
const bringWithin = 500 * time.Millisecond

// Questions are those of the controller.
func (s *Server) Questions() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET " + wire.MachineArrivalPath:  s.of(s.arrival),
		"GET " + wire.MachineFlowsPath:    s.of(s.read),
		"PUT " + wire.MachineFlowsPath:    s.of(s.take),
		"DELETE " + wire.MachineFlowsPath: s.of(s.leave),
	}
}

// of answers for the address that a question names, if it is a virtual machine's.
func (s *Server) of(answer func(http.ResponseWriter, *http.Request, netip.Addr) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := netip.ParseAddr(r.URL.Query().Get(wire.MachineFlowsAddress))
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case s.Machines.Kept(a) == "":
			http.Error(w, a.String()+" is no virtual machine's", http.StatusForbidden)
		case s.State() == nil:
			http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
		default:
			if err := answer(w, r, a); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
			}
		}
	}
}

func (s *Server) kind(a netip.Addr) nodestate.AddrKind { return s.State().Addrs[a].Kind }

// arrival answers when the machine has announced itself.
func (s *Server) arrival(w http.ResponseWriter, r *http.Request, a netip.Addr) error {
	if s.Machines.EndpointOf(a) == nil {
		return errElsewhere(a)
	}
	s.mu.Lock()
	v := s.arrivals[a]
	if v == nil || v.isHere {
		v = &arrival{here: make(chan struct{}), brought: make(chan struct{})}
		if s.arrivals == nil {
			s.arrivals = map[netip.Addr]*arrival{}
		}
		s.arrivals[a] = v
	}
	v.asking++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if v.asking--; v.asking == 0 && !v.isHere && s.arrivals[a] == v {
			delete(s.arrivals, a)
		}
	}()
	select {
	case <-v.here:
		w.WriteHeader(http.StatusNoContent)
	case <-r.Context().Done():
	}
	return nil
}

func errElsewhere(a netip.Addr) error {
	return fmt.Errorf("the machine of %s is not at this node, nor moved to it", a)
}

// Arrived is told that a machine has announced itself, and returns when its flows are here, or will
// not be soon.
func (s *Server) Arrived(ctx context.Context, addrs []netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, bringWithin)
	defer cancel()
	var waits []*arrival
	s.mu.Lock()
	for _, a := range addrs {
		if v := s.arrivals[a]; v != nil && v.asking > 0 && !v.isHere {
			v.isHere = true
			close(v.here)
			waits = append(waits, v)
		}
	}
	s.mu.Unlock()
	for _, v := range waits {
		select {
		case <-v.brought:
		case <-ctx.Done():
		}
	}
}

// over notes that all flows of an address are here.
func (s *Server) over(a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.arrivals[a]; v != nil && v.isHere && !v.isOver {
		v.isOver = true
		close(v.brought)
		delete(s.arrivals, a)
	}
}

// read answers by the flows that can go on at another node.
func (s *Server) read(w http.ResponseWriter, _ *http.Request, a netip.Addr) error {
	all, err := s.Plane.FlowsOf(a)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	for _, e := range all {
		if f, ok := leaving(a, e, s.kind); ok {
			if err := out.Encode(f); err != nil {
				return nil // who asked has gone
			}
		}
	}
	return nil
}

// take writes flows of a machine that is here, or comes.
func (s *Server) take(w http.ResponseWriter, r *http.Request, a netip.Addr) error {
	ep := s.Machines.EndpointOf(a)
	if ep == nil {
		return errElsewhere(a)
	}
	flows, err := s.decode(r, a)
	if err != nil {
		return err
	}
	if err := s.Plane.PutFlows(a, ep.IfIndex, flows); err != nil {
		return err
	}
	if r.URL.Query().Has(wire.MachineFlowsLast) {
		s.over(a)
	}
	s.Log.Debug("took open flows of a virtual machine", "address", a.String(), "flows", len(flows))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// decode reads flows, all of which must be the machine's.
func (s *Server) decode(r *http.Request, a netip.Addr) (flows []conntrack.Entry, err error) {
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		var f wire.MachineFlow
		err := json.Unmarshal(lines.Bytes(), &f)
		if err == nil {
			err = check(a, f)
		}
		if err != nil {
			return nil, fmt.Errorf("a flow of %s: %w", a, err)
		}
		flows = append(flows, entry(f))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("flows of %s: %w", a, err)
	}
	return flows, nil
}

// leave changes what is left here of the flows of a machine that has gone.
func (s *Server) leave(w http.ResponseWriter, _ *http.Request, a netip.Addr) error {
	all, err := s.Plane.FlowsOf(a)
	if err != nil {
		return err
	}
	var changed []conntrack.Entry
	for _, e := range all {
		if e, ok := left(a, e, s.kind); ok {
			changed = append(changed, e)
		}
	}
	if err := s.Plane.PutFlows(a, 0, changed); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
