// SPDX-License-Identifier: Apache-2.0

package lbhealth

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// foreignFor is how long a port must have been nobody's before the agent takes it, once somebody
// else had it: a process of the host that restarts finds its port free.
const foreignFor = time.Minute

// foreignPorts are ports that health checks of Services ask for and others have.
type foreignPorts struct {
	now     func() time.Time
	listens func(port uint16) bool
	seen    map[uint16]time.Time // when somebody else had it last
}

func newForeignPorts() foreignPorts {
	return foreignPorts{now: time.Now, listens: func(port uint16) bool { return listens("/proc", port) }, seen: map[uint16]time.Time{}}
}

// free reports whether the agent may take a port.
func (h *foreignPorts) free(port uint16) bool {
	last, held := h.seen[port]
	if !held {
		return true
	}
	if h.listens(port) {
		h.seen[port] = h.now()
		return false
	}
	if h.now().Sub(last) < foreignFor {
		return false
	}
	delete(h.seen, port)
	return true
}

// failed notes why the agent could not take a port.
func (h *foreignPorts) failed(port uint16, err error) {
	if errors.Is(err, syscall.EADDRINUSE) {
		h.seen[port] = h.now()
	}
}

// keep forgets all other ports.
func (h *foreignPorts) keep(ports map[uint16]bool) {
	for port := range h.seen {
		if !ports[port] {
			delete(h.seen, port)
		}
	}
}

// listens reports whether a socket of this network namespace listens on a TCP port (proc(5),
// net/tcp).
func listens(proc string, port uint16) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, "self/net", table))
		if err != nil {
			continue
		}
		defer f.Close()
		for in := bufio.NewScanner(f); in.Scan(); {
			w := strings.Fields(in.Text())
			if len(w) < 4 || w[3] != "0A" {
				continue
			}
			_, text, _ := strings.Cut(w[1], ":")
			if b, err := hex.DecodeString(text); err == nil && len(b) == 2 && uint16(b[0])<<8|uint16(b[1]) == port {
				return true
			}
		}
	}
	return false
}

// portOf is the port of host:port.
func portOf(at string) uint16 {
	_, text, _ := net.SplitHostPort(at)
	n, _ := strconv.ParseUint(text, 10, 16)
	return uint16(n)
}

// Problems says which Services' health checks are not answered because somebody else has their
// port, or their namespace has too many.
func Problems(node string, failed map[string]model.Name, beyond []model.Name) []weirv1.Problem {
	var out []weirv1.Problem
	for at, name := range failed {
		out = append(out, weirv1.Problem{Object: "Service " + name.String(), Field: "spec.healthCheckNodePort", Value: at,
			Message: "cannot be listened at on node " + node + ", where another process may have the port; load balancers find the node unhealthy for the Service",
			Action:  "choose another port, or end what has it"})
	}
	slices.SortFunc(out, func(a, b weirv1.Problem) int { return strings.Compare(a.Object+a.Value, b.Object+b.Value) })
	for _, name := range beyond {
		out = append(out, weirv1.Problem{Object: "Service " + name.String(), Field: "spec.healthCheckNodePort",
			Message: fmt.Sprintf("is not answered: namespace %s has more than %d such Services; load balancers find every node unhealthy for the Service", name.Namespace, maxChecksOfNamespace),
			Action:  "use fewer of them in one namespace"})
	}
	return out
}
